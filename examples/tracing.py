# SPDX-License-Identifier: Apache-2.0
"""Print the spans of messages that are published and handled, with ``[kafka] tracing = on``.

It needs the extra ``otel`` and ``opentelemetry-sdk``.

Exit status: 0 if every reading is delivered and handled, otherwise 1.
"""

import sys
import threading
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from oslo_config import cfg

from monasca_common import kafka

COUNT = 3


class LinkSampler(Sampler):
    """Samples a fraction of the root spans, and each root span with a link, because the library links sampled spans."""

    def __init__(self, share: float) -> None:
        self._others = TraceIdRatioBased(share)

    def should_sample(self, *arguments: Any, **named: Any) -> SamplingResult:
        sampler = ALWAYS_ON if named.get("links") else self._others
        return sampler.should_sample(*arguments, **named)

    def get_description(self) -> str:
        return f"LinkSampler,{self._others.get_description()}"


def line(span: ReadableSpan) -> str:
    links = [f" links {link.context.trace_id:032x}" for link in span.links]
    return f"{span.name} of {span.context.trace_id:032x}{''.join(links)}\n"


def run(conf: cfg.ConfigOpts) -> bool:
    handled = threading.Event()

    def handle(part: kafka.PartitionBatch) -> None:
        if str(COUNT - 1).encode() in part.values:
            handled.set()

    with kafka.load_producer(conf) as producer, kafka.load_consumer(conf, "kafka_readings") as consumer:
        [topic] = consumer.settings.topics
        with trace.get_tracer("example").start_as_current_span("read the sensors"):
            records = [str(number).encode() for number in range(COUNT)]
            producer.publish(topic, records, key=b"sensor").raise_for_undelivered()
        processor = kafka.Processor(consumer, handle)
        running = threading.Thread(target=processor.run)
        running.start()
        handled.wait(60)
        processor.stop()
        running.join()
    return handled.is_set()


def main() -> int:
    provider = TracerProvider(sampler=ParentBased(LinkSampler(1.0)))
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    trace.set_tracer_provider(provider)
    conf = cfg.ConfigOpts()
    try:
        conf(project="tracing", default_config_files=[])
        return 0 if run(conf) else 1
    except (kafka.MessagingError, cfg.Error) as error:
        print(f"tracing: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
