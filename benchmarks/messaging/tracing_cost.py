# SPDX-License-Identifier: Apache-2.0
"""Measure the CPU time of messages that are published and handled, with ``[kafka] tracing`` off and on, on a Kafka that
this command starts. An application samples 1 % of its calls of ``publish``, and each span that links a sampled one.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sized
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
_BULK, _BULKS = 100, 1000
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
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with KafkaCluster() as cluster:
        for number in range(_REPEATS):
            for tracing in ("off", "on") if number % 2 else ("on", "off"):
                topic = f"{tracing}-{number}"
                cluster.create_topic(topic, 1)
                connection = ConnectionSettings(cluster.bootstrap_servers, tracing=tracing)
                found["publish", tracing].append(_publish(connection, topic))
                found["handle, reading headers", tracing].append(_handle(connection, topic, lambda part: part.headers))
                found["handle, reading no headers", tracing].append(_handle(connection, topic, lambda part: part))
    for case in dict.fromkeys(case for case, _ in found):
        off, on = (statistics.median(found[case, tracing]) for tracing in ("off", "on"))
        print(f"{case}: off {off:.2f}, on {on:.2f} us/message ({on / off - 1:+.1%})")


def _publish(connection: ConnectionSettings, topic: str) -> float:
    """Return the CPU time of this process for each message."""
    records, tracer = VALUES[:_BULK], trace.get_tracer("application")
    with open_producer(ProducerSettings(connection)) as producer:
        began = time.process_time()
        for _ in range(_BULKS):
            with tracer.start_as_current_span("application"):
                producer.publish(topic, records).raise_for_undelivered()
        return _per_message(began)


def _handle(connection: ConnectionSettings, topic: str, read: Callable[[PartitionBatch], Sized]) -> float:
    handled = 0

    def handle(part: PartitionBatch) -> None:
        nonlocal handled
        handled += len(read(part))
        if handled == _BULK * _BULKS:
            processor.stop()

    settings = ConsumerSettings(connection=connection, topics=(topic,), group_id=uuid.uuid4().hex)
    with open_consumer(settings) as consumer:
        processor = Processor(consumer, handle)
        began = time.process_time()
        processor.run()
        return _per_message(began)


def _per_message(began: float) -> float:
    return 1_000_000 * (time.process_time() - began) / (_BULK * _BULKS)


if __name__ == "__main__":
    main()
