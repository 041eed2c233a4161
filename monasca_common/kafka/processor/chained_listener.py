# SPDX-License-Identifier: Apache-2.0
"""Notifies the processor of rebalances before the consumer's own listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.message import TopicPartition


class RevocableWork(Protocol):
    """Work on partitions, which must release them when they are revoked; see `RebalanceListener`."""

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None: ...

    def lost(self, partitions: Sequence[TopicPartition]) -> None: ...


class ChainedRebalanceListener(RebalanceListener):
    """Stands before the consumer's own listener from `attach` to `release`."""

    def __init__(self, consumer: KafkaConsumer, work: RevocableWork) -> None:
        self._consumer = consumer
        self._work = work
        self._inner = consumer.listener
        self.chosen: set[TopicPartition] = set()  # those whose start the consumer's own listener returned

    def attach(self) -> None:
        self._inner = self._consumer.listener
        self._consumer.listener = self

    def release(self) -> None:
        self._consumer.listener = self._inner

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        starts = self._inner.assigned(partitions)
        self.chosen.update(starts or ())
        return starts

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        self.chosen.difference_update(partitions)
        try:
            self._work.revoked(partitions, deadline)
        finally:
            self._inner.revoked(partitions, deadline)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.chosen.difference_update(partitions)
        try:
            self._work.lost(partitions)
        finally:
            self._inner.lost(partitions)
