# SPDX-License-Identifier: Apache-2.0
"""Measure the CPU time of messages that are published, sent and handled, with ``[kafka] tracing`` off and on, on a
Kafka that this command starts. Each span of the application has 100 messages; exactly 1 % of these spans are sampled,
and each span that links one of them. Short measurements with off and on alternate, so their conditions are equal.
"""

from __future__ import annotations

import itertools
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, SamplingResult

from benchmarks.payload import VALUES
from monasca_common.devbroker import KafkaCluster
from monasca_common.kafka import KafkaProducer, PartitionBatch, Processor, open_consumer, open_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.models.metric import MetricDecoder
from monasca_common.persister.decoder import EnvelopeDecoder
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.storage.base import Kind
from monasca_common.storage.batch_handler import Faults

_BULK, _BULKS = 100, 100  # messages of a span, and spans of a measurement
_TIMES, _HANDLE_TIMES = 20, 9
_BACKLOG = 200_000
_TOPIC = "metrics"


class _Sampler(Sampler):
    """Samples every hundredth root span, and each span with a link."""

    def __init__(self) -> None:
        self._places = itertools.cycle(range(100))

    def should_sample(self, *arguments: Any, **named: Any) -> SamplingResult:
        is_sampled = named.get("links") or not next(self._places)
        return (ALWAYS_ON if is_sampled else ALWAYS_OFF).should_sample(*arguments, **named)

    def get_description(self) -> str:
        return "1 %"


def main() -> None:
    provider = TracerProvider(sampler=ParentBased(_Sampler()))
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    decode = EnvelopeDecoder(Kind.METRICS, EnvelopeReader(), MetricDecoder(100_000, max_dimensions=100).decode_all)
    handlers: dict[str, Callable[[PartitionBatch], object]] = {
        "handle, counting messages": len,
        "handle, reading headers": lambda part: part.headers,
        "handle, decoding metrics": lambda part: decode(part, Faults()),
    }
    with KafkaCluster() as cluster:
        cluster.create_topic(_TOPIC, 1)
        settings = [ConnectionSettings(cluster.bootstrap_servers, tracing=tracing) for tracing in ("off", "on")]
        producers = [open_producer(ProducerSettings(connection)) for connection in settings]
        for number in range(_TIMES):
            for producer in producers[:: 1 if number % 2 else -1]:
                tracing = producer.settings.connection.tracing
                found["publish"][tracing].append(_publish(producer))
                found["send"][tracing].append(_send(producer))
        for producer in producers:
            producer.close()
        for number in range(_HANDLE_TIMES):
            for (case, handle), connection in itertools.product(handlers.items(), settings[:: 1 if number % 2 else -1]):
                found[case][connection.tracing].append(_handle(connection, handle))
    for case, by_tracing in found.items():
        off, on = (statistics.median(by_tracing[tracing]) for tracing in ("off", "on"))
        print(f"{case}: off {off:.2f}, on {on:.2f} us/message ({on / off - 1:+.1%})")


def _publish(producer: KafkaProducer) -> float:
    """Return the CPU time of this process for each message, like the functions below."""
    records, tracer = VALUES[:_BULK], trace.get_tracer("application")
    began = time.process_time()
    for _ in range(_BULKS):
        with tracer.start_as_current_span("application"):
            producer.publish(_TOPIC, records).raise_for_undelivered()
    return _per_message(began, _BULKS * _BULK)


def _send(producer: KafkaProducer) -> float:
    records, tracer = VALUES[:_BULK], trace.get_tracer("application")
    began = time.process_time()
    for _ in range(_BULKS):
        with tracer.start_as_current_span("application"):
            for record in records:
                producer.send(_TOPIC, record)
    producer.flush().raise_for_undelivered()
    return _per_message(began, _BULKS * _BULK)


def _handle(connection: ConnectionSettings, read: Callable[[PartitionBatch], object]) -> float:
    handled = 0

    def handle(part: PartitionBatch) -> None:
        nonlocal handled
        read(part)
        handled += len(part)
        if handled >= _BACKLOG:
            processor.stop()

    settings = ConsumerSettings(connection=connection, topics=(_TOPIC,), group_id=uuid.uuid4().hex)
    with open_consumer(settings) as consumer:
        processor = Processor(consumer, handle)
        began = time.process_time()
        processor.run()
        return _per_message(began, handled)


def _per_message(began: float, messages: int) -> float:
    return 1_000_000 * (time.process_time() - began) / messages


if __name__ == "__main__":
    main()
