# SPDX-License-Identifier: Apache-2.0
"""Consuming through librdkafka: the common part of the native and the confluent-kafka client."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_INVALID, KafkaError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import RetriableError, TransportError
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.kafka.transport.admin import Admin, repeat_after_moves
from monasca_common.kafka.transport.base import END, ConsumerTransport, RebalanceCallbacks
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.librdkafka_options import admin_options

_SEEK_SECONDS = 10.0  # this call only waits for the client's own thread
_FINISH_SECONDS = 1.0  # for rebalances in progress when the consumer closes
_FINISH_TURN_SECONDS = 0.01
FINISH_MESSAGES = 1000  # fetched messages that are dropped to reach later events


class PartitionAnswer(NamedTuple):
    offset: int
    error: TransportError | None


class LibrdkafkaConsumer(ConsumerTransport):
    """One librdkafka consumer. Its threads start here; it sends no request before it subscribes or assigns."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.clock: Clock = SystemClock()
        self._client_id = settings.connection.client_id
        # KIP-848 is always incremental; of the classic assignors only the cooperative one is.
        self._eager = settings.group_protocol == "classic" and settings.assignment_strategy not in (
            None,
            "cooperative-sticky",
        )
        self._callbacks: RebalanceCallbacks | None = None
        self._rebalancing = False
        self._closing = False
        self._rebalanced = False  # whether partitions changed since the last reset, while closing
        # A static member remains in its group while its process restarts, so it must not unsubscribe and leave.
        self._leaves = settings.group_instance_id is None
        self._started: dict[TopicPartition, int] = {}
        self._admin = Admin(admin_options(settings.connection))
        self._guard = ForkGuard("KafkaConsumer")
        self._guard.pin(self._admin)

    @abstractmethod
    def _ask(
        self, call: str, offsets: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, PartitionAnswer]:
        """Call a client method that takes or returns partitions."""

    @abstractmethod
    def _poll_for_rebalances(self, timeout: float) -> None:
        """Poll, and drop the messages."""

    @abstractmethod
    def _release(self) -> None:
        """Close the client."""

    # After a callback without an (un)assign, the client itself starts assigned partitions, and releases revoked or lost
    # partitions.

    def _on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._rebalanced = self._rebalancing = True
        try:
            if not self._closing and self._callbacks is not None:
                self._callbacks.on_assign(partitions)
        finally:
            self._rebalancing = False

    def _on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self._rebalanced = True
        if self._callbacks is not None:
            self._callbacks.on_revoke(partitions)

    def _on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._rebalanced = True
        if self._callbacks is not None:
            self._callbacks.on_lost(partitions)

    def assign_owned(self, positions: Mapping[TopicPartition, int]) -> None:
        if self._eager and not self._rebalancing:
            # The client cannot seek a partition whose position is out of range, so it is assigned again. For an eager
            # member, an assignment replaces the previous one, so it includes the other partitions.
            current = self.position(self.assignment())
            kept = {tp: self._started.get(tp, OFFSET_INVALID) if at is None else at for tp, at in current.items()}
            positions = {**kept, **positions}
        self._started.update(positions)
        if self._eager:
            self._ask("assign", positions)
            return
        if not self._rebalancing:
            self._ask("incremental_unassign", positions)
        self._ask("incremental_assign", positions)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        # Manual assignments can be changed incrementally under any group protocol.
        self._eager = False
        self._ask("assign", positions)

    def assignment(self) -> set[TopicPartition]:
        return set(self._ask("assignment", {}))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._ask("pause", _without_offsets(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._ask("resume", _without_offsets(partitions))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        _known(self._ask("seek", {partition: offset}, _SEEK_SECONDS))
        self._started[partition] = offset

    def position(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the client's position in each partition, or ``None`` before its first message."""
        return _known(self._ask("position", _without_offsets(partitions)))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, TransportError | None]:
        try:
            return {tp: answer.error for tp, answer in self._ask("commit", offsets).items()}
        except TransportError as error:
            return dict.fromkeys(offsets, error)

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]:
        return _known(self._ask("committed", _without_offsets(partitions), timeout))

    def fetched_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        answers = self._ask("fetched_ends", _without_offsets(partitions))
        return {tp: answer.offset for tp, answer in answers.items() if answer.error is None and answer.offset >= 0}

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int]:
        if not times_ms:
            return {}  # otherwise the client raises "invalid argument"
        deadline = self.clock.monotonic() + timeout

        def ask(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
            left = max(0.1, deadline - self.clock.monotonic())
            return repeat_after_moves(lambda seconds: _known(self._ask("offsets_for_times", times, seconds)), left)

        try:
            answers = ask(times_ms)
            later = [tp for tp, offset in answers.items() if offset is None]  # than the last record
            if later:
                answers |= ask(dict.fromkeys(later, END))
        except TransportError as error:
            if error.code != KafkaError._UNKNOWN_PARTITION:
                raise
            # A group can assign a new partition before this client knows it.
            raise RetriableError(str(error), code=error.code, name=error.name) from error
        found = {tp: offset for tp, offset in answers.items() if offset is not None}
        if len(found) < len(times_ms):
            raise RetriableError(f"the ends of {len(times_ms) - len(found)} logs are not known", name="_TIMED_OUT")
        return found

    def partition_count(self, topic: str, timeout: float) -> int:
        # Do not use the consumer's list_topics: within a rebalance callback, confluent-kafka's client loses its state
        # in this call, and the next callback of the same poll aborts the process.
        try:
            return self._admin.partition_count(topic, timeout)
        except ValueError as error:  # raised for an invalid topic name
            raise translate(error) from error

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        return self._admin.topic_ids(topics, timeout)

    def close(self) -> None:
        self._closing = True
        try:
            if self._callbacks is not None:
                self._finish_rebalances()
        finally:
            self._release()

    def _finish_rebalances(self) -> None:
        """Finish rebalances in progress before the client's close, which can otherwise wait indefinitely for the
        response to an (un)assign (librdkafka's issue 4884)."""
        if self._leaves:
            self._ask("unsubscribe", {})
        deadline = self.clock.monotonic() + _FINISH_SECONDS
        while self.clock.monotonic() < deadline:
            self._rebalanced = False
            self._poll_for_rebalances(_FINISH_TURN_SECONDS)
            if not self._rebalanced and not (self._leaves and self.assignment()):
                return


def _without_offsets(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    return dict.fromkeys(partitions, OFFSET_INVALID)


def _known(answers: Mapping[TopicPartition, PartitionAnswer]) -> dict[TopicPartition, int | None]:
    """Return the offsets of a response, or ``None`` for negative values, which mean that there is no offset."""
    errors = [answer.error for answer in answers.values() if answer.error is not None]
    if errors:
        del answers  # because the error's traceback would keep this frame alive
        raise errors.pop(0)
    return {tp: answer.offset if answer.offset >= 0 else None for tp, answer in answers.items()}
