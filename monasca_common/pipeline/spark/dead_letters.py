# SPDX-License-Identifier: Apache-2.0
"""Records that are in no aggregate, to the dead-letter topic, by the executors that met them.

A task returns only when they are acknowledged, so an offset that is accounted for has no silent gap. A task that runs
twice sends them twice, under the same ids.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monasca_common.kafka.dead_letter import DeadLetters, Failure, dead_letter
from monasca_common.kafka.errors import MessageTooLarge, UndeliveredError
from monasca_common.kafka.message import Record
from monasca_common.kafka.processing.outbox import portions, shrunk
from monasca_common.kafka.producer import KafkaProducer
from monasca_common.pipeline.errors import NotAggregated
from monasca_common.pipeline.records import Rejection
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.spark.originals import originals
from monasca_common.pipeline.spark.worker_producer import portable, worker_producer


@dataclass(frozen=True, slots=True)
class DeadLetterOffice:
    """Travels to the executors, with the settings of a consumer and a producer in it."""

    topic: str
    group: str
    _consumer: bytes = field(repr=False)
    _producer: bytes = field(repr=False)

    @classmethod
    def of(cls, stream: StreamSettings) -> DeadLetterOffice:
        topic = DeadLetters().topic_for(stream.topic, stream.consumer.dead_letter_topic)
        return cls(topic, stream.group, portable(stream.consumer), portable(stream.producer))

    def __call__(self, partition: int, rejected: Mapping[int, Rejection]) -> None:
        """``rejected`` by offset. Raises `UndeliveredError`, and what `originals` raises."""
        now_ms = time.time_ns() // 1_000_000
        letters = [
            dead_letter(message, Failure(_error(rejected[message.offset]), 1, now_ms), self.group)
            for message in originals(pickle.loads(self._consumer), partition, rejected)
        ]
        producer = worker_producer(self._producer)
        for portion in portions(letters, producer.settings):
            self._deliver(producer, portion)

    def _deliver(self, producer: KafkaProducer, letters: Sequence[Record]) -> None:
        while letters:
            report = producer.publish(self.topic, letters)
            if not any(isinstance(each.error, MessageTooLarge) for each in report.failed):
                return report.raise_for_undelivered()
            # A record as large as its topic takes is too large with its origin: cut, or no batch would ever pass it.
            letters = shrunk(letters, UndeliveredError(report))
        return None


def _error(rejection: Rejection) -> NotAggregated:
    return NotAggregated(f"{rejection.kind}: {rejection.reason}")
