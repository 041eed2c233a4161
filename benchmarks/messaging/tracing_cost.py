# SPDX-License-Identifier: Apache-2.0
"""Measure the CPU time of messages that are published and handled, with ``[kafka] tracing`` off and on, on a Kafka that
this command starts. An application samples 1 % of its calls of ``publish``, and each span that links a sampled one.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

from benchmarks.payload import VALUES
from monasca_common.devbroker import KafkaCluster
from monasca_common.kafka import PartitionBatch, Processor, open_consumer, open_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

_SHARE = 0.01
_BULK, _BULKS = 100, 300
_REPEATS = 9


class _Sampler(TraceIdRatioBased):
    def should_sample(self, *arguments: Any, **named: Any) -> Any:
        if named.get("links"):
            return ALWAYS_ON.should_sample(*arguments, **named)
        return super().should_sample(*arguments, **named)


def main() -> None:
    provider = TracerProvider(sampler=ParentBased(_Sampler(_SHARE)))
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)
    with KafkaCluster() as cluster:
        for reads_headers in (True, False):
            found: dict[str, list[float]] = {"off": [], "on": []}
            for number in range(_REPEATS):
                for tracing in found if number % 2 else reversed(found):
                    topic = f"{tracing}-{reads_headers}-{number}"
                    cluster.create_topic(topic, 1)
                    connection = ConnectionSettings(cluster.bootstrap_servers, tracing=tracing)
                    found[tracing].append(_microseconds(connection, topic, reads_headers=reads_headers))
            off, on = (statistics.median(found[tracing]) for tracing in ("off", "on"))
            handler = "reads headers" if reads_headers else "reads no headers"
            print(f"the handler {handler}: off {off:.1f}, on {on:.1f} us/message ({on / off - 1:+.1%})")


def _microseconds(connection: ConnectionSettings, topic: str, *, reads_headers: bool) -> float:
    """Return the CPU time of this process for each message."""
    handled = 0

    def handle(part: PartitionBatch) -> None:
        nonlocal handled
        handled += len(part.headers if reads_headers else part)
        if handled == _BULK * _BULKS:
            processor.stop()

    reading = ConsumerSettings(connection=connection, topics=(topic,), group_id=topic)
    records, tracer = VALUES[:_BULK], trace.get_tracer("application")
    with open_producer(ProducerSettings(connection)) as producer, open_consumer(reading) as consumer:
        processor = Processor(consumer, handle)
        began = time.process_time()
        for _ in range(_BULKS):
            with tracer.start_as_current_span("application"):
                producer.publish(topic, records).raise_for_undelivered()
        processor.run()
        return 1_000_000 * (time.process_time() - began) / (_BULK * _BULKS)


if __name__ == "__main__":
    main()
