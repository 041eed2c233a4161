# SPDX-License-Identifier: Apache-2.0
"""Who hears first that partitions go: the work in progress, and then the consumer's own listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from monasca_common.kafka.consumer import KafkaConsumer
from monasca_common.kafka.consuming.rebalance import RebalanceListener
from monasca_common.kafka.message import TopicPartition


class RevocableWork(Protocol):
    """Work on partitions, which it must let go of when they are taken; see `RebalanceListener`."""

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None: ...

    def lost(self, partitions: Sequence[TopicPartition]) -> None: ...


class HandOver(RebalanceListener):
    """Stands before the consumer's own listener from `attach` to `release`."""

    def __init__(self, consumer: KafkaConsumer, work: RevocableWork) -> None:
        self._consumer = consumer
        self._work = work
        self._inner = consumer.listener

    def attach(self) -> None:
        self._inner = self._consumer.listener
        self._consumer.listener = self

    def release(self) -> None:
        self._consumer.listener = self._inner

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        return self._inner.assigned(partitions)

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        try:
            self._work.revoked(partitions, deadline)
        finally:
            self._inner.revoked(partitions, deadline)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            self._work.lost(partitions)
        finally:
            self._inner.lost(partitions)
