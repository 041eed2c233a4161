# SPDX-License-Identifier: Apache-2.0
"""`ConsumerTransport` over confluent-kafka's Consumer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    cimpl,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ClosedError, RetriableError, TransportError
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.kafka.transport.admin import Admin
from monasca_common.kafka.transport.base import ConsumerTransport, RebalanceCallbacks
from monasca_common.kafka.transport.client_log import ClientLog
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.librdkafka_options import admin_options, consumer_options
from monasca_common.kafka.transport.refused_options import make_client

LOG = logging.getLogger(__name__)

# confluent-kafka 2.16 lets one thread at a time into a consumer, where librdkafka takes any: a commit by another
# thread would wait until a poll is over, and a held commit would hold the polls. Who presents the same identity
# counts as the same caller; this is what its own AIOConsumer does. Earlier versions had neither lock nor identity.
_IDENTITY: ContextVar[int] = getattr(cimpl, "_reentry_identity_var", None) or ContextVar("unused", default=0)

_FINISH_SECONDS = 1.0  # for rebalances that are under way when it closes
_FINISH_TURN_SECONDS = 0.01
_FINISH_MESSAGES = 1000  # fetched ones, that are dropped to get at what is behind them


class ConfluentConsumer(ConsumerTransport):
    """One librdkafka consumer. Its threads start here; nothing is asked of a broker before it subscribes or assigns."""

    message_type = Message

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        on_error: Callable[[TransportError], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.on_error = on_error
        # KIP-848 is incremental always; of the classic assignors only the cooperative one is.
        self._eager = settings.group_protocol == "classic" and settings.assignment_strategy not in (
            None,
            "cooperative-sticky",
        )
        self._identity = id(self)
        self._rebalancing = False
        self._closing = False
        self._rebalanced = False  # since it was last reset, while closing
        # A static member stays in its group while its process restarts, so it must not unsubscribe, which would leave.
        self._leaves = settings.group_instance_id is None
        self._subscribed = False
        self._started: dict[TopicPartition, int] = {}
        self._admin: Admin | None = None
        self._admin_options = admin_options(settings.connection)
        self._admin_lock = threading.Lock()
        self._guard = ForkGuard("KafkaConsumer")
        options = {**consumer_options(settings), "error_cb": self._heard}
        self._log = ClientLog(LOG, self.clock)
        self._client_id = settings.connection.client_id
        self._client = make_client("consumer_options", lambda: Consumer(options, logger=self._log))
        self._guard.pin(self._client)

    def subscribe(self, topics: Sequence[str], callbacks: RebalanceCallbacks) -> None:
        # Without an (un)assign in the callback, the client itself takes what was given, and gives up what was revoked
        # or lost.

        def on_assign(_client: Consumer, partitions: list[ClientTopicPartition]) -> None:
            self._rebalanced = self._rebalancing = True
            try:
                if not self._closing:
                    callbacks.on_assign(_ours(partitions))
            finally:
                self._rebalancing = False

        def on_revoke(_client: Consumer, partitions: list[ClientTopicPartition]) -> None:
            self._rebalanced = True
            callbacks.on_revoke(_ours(partitions))

        def on_lost(_client: Consumer, partitions: list[ClientTopicPartition]) -> None:
            self._rebalanced = True
            callbacks.on_lost(_ours(partitions))

        with self._calling():
            self._subscribed = True
            self._client.subscribe(list(topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def assign_owned(self, positions: Mapping[TopicPartition, int]) -> None:
        with self._calling():
            if self._eager and not self._rebalancing:
                # A partition that ran out of range cannot be sought, and an eager member has but one assignment.
                current = _known(self._client.position(self._client.assignment()))
                kept = {tp: self._started.get(tp, OFFSET_INVALID) if at is None else at for tp, at in current.items()}
                positions = {**kept, **positions}
            self._started.update(positions)
            if self._eager:
                self._client.assign(_theirs(positions))
                return
            if not self._rebalancing:
                self._client.incremental_unassign(_theirs(positions))
            self._client.incremental_assign(_theirs(positions))

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        # What is assigned by hand may be changed bit by bit, whatever the group's protocol.
        self._eager = False
        with self._calling():
            self._client.assign(_theirs(positions))

    def assignment(self) -> set[TopicPartition]:
        with self._calling():
            return set(_ours(self._client.assignment()))

    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        try:
            with self._calling():
                # `consume(n, timeout)` alone would wait the whole time for n messages.
                first = self._client.poll(timeout)
                if first is None:
                    return ()
                if max_messages == 1:
                    return (first,)
                messages: list[Message] = self._client.consume(max_messages - 1, 0)
        except SystemError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None  # a signal's handler raised it: the call returned all the same
            # The client forgets the exception of a signal that comes in just as it calls us back.
            raise KeyboardInterrupt from error
        messages.insert(0, first)
        return messages

    def fault(self, error: Any) -> TransportError:
        return translate(error)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with self._calling():
            self._client.pause([ClientTopicPartition(*tp) for tp in partitions])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self._calling():
            self._client.resume([ClientTopicPartition(*tp) for tp in partitions])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        with self._calling():
            self._client.seek(ClientTopicPartition(*partition, offset))

    def position(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        with self._calling():
            return _known(self._client.position([ClientTopicPartition(*tp) for tp in partitions]))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, TransportError | None]:
        try:
            with self._calling():
                answers = self._client.commit(offsets=_theirs(offsets), asynchronous=False)
        except TransportError as error:
            return dict.fromkeys(offsets, error)
        return {
            TopicPartition(tp.topic, tp.partition): None if tp.error is None else translate(tp.error) for tp in answers
        }

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]:
        with self._calling():
            return _known(self._client.committed([ClientTopicPartition(*tp) for tp in partitions], timeout=timeout))

    def watermarks(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """With ``timeout`` 0 from the last fetch, without asking a broker."""
        asked = ClientTopicPartition(*partition)
        with self._calling():
            if timeout > 0:
                marks = self._client.get_watermark_offsets(asked, timeout=timeout)
            else:
                marks = self._client.get_watermark_offsets(asked, cached=True)
        if marks is None or marks[1] < 0:
            raise RetriableError(
                f"no watermarks of {partition.topic}/{partition.partition} within {timeout} s", name="_TIMED_OUT"
            )
        return max(0, marks[0]), marks[1]

    # All partitions in one request: `watermarks` waits for the fetch in flight once a partition.

    def first_offsets(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        return self.offsets_for_times(dict.fromkeys(partitions, OFFSET_BEGINNING), timeout)

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        return self.offsets_for_times(dict.fromkeys(partitions, OFFSET_END), timeout)

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int]:
        if not times_ms:
            return {}  # the client would call it an invalid argument
        deadline = self.clock.monotonic() + timeout
        try:
            with self._calling():
                answers = self._client.offsets_for_times(_theirs(times_ms), timeout=timeout)
        except TransportError as error:
            if error.code != KafkaError._UNKNOWN_PARTITION:
                raise
            # A group may give out a partition that was just added before this client has heard of it.
            raise RetriableError(str(error), code=error.code, name=error.name) from error
        found = {}
        for tp, offset in _known(answers).items():
            if offset is None:
                offset = self.watermarks(tp, max(0.1, deadline - self.clock.monotonic()))[1]
            found[tp] = offset
        return found

    def partition_count(self, topic: str, timeout: float) -> int:
        # Not by the consumer's own list_topics: called within a rebalance callback, as this is, that leaves the
        # client without its state, and the next callback of the same poll aborts the process.
        with self._calling():
            return self._ask_admin().partition_count(topic, timeout)

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        return self._ask_admin().topic_ids(topics, timeout)

    def group_metadata(self) -> Any:
        with self._calling():
            return self._client.consumer_group_metadata()

    def close(self) -> None:
        self._closing = True
        with self._calling():
            try:
                if self._subscribed:
                    self._finish_rebalances()
            finally:
                self._client.close()

    def abandon(self) -> None:
        self._closing = True
        self._guard.unpin()
        del self._client  # its callbacks refer to this object: the last reference must not wait for the collector

    def _finish_rebalances(self) -> None:
        """One that is under way must not reach into the client's own close: there it may wait for the answer to an
        (un)assign indefinitely, and hold the interpreter meanwhile (librdkafka's issue 4884)."""
        if self._leaves:
            self._client.unsubscribe()
        deadline = self.clock.monotonic() + _FINISH_SECONDS
        while self.clock.monotonic() < deadline:
            self._rebalanced = False
            self._client.consume(_FINISH_MESSAGES, _FINISH_TURN_SECONDS)
            if not self._rebalanced and not (self._leaves and self._client.assignment()):
                return

    def _ask_admin(self) -> Admin:
        with self._admin_lock:
            if self._admin is None:
                self._admin = Admin(self._admin_options)
                self._guard.pin(self._admin)
            return self._admin

    def _heard(self, error: KafkaError) -> None:
        fault = translate(error)
        self._log.log(logging.WARNING, "Kafka client %s: %s", self._client_id, fault)
        if self.on_error is not None:
            self.on_error(fault)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Around every call of the client: its errors become ours, and other threads need not wait for it."""
        token = _IDENTITY.set(self._identity)
        try:
            yield
        except KafkaException as error:
            raise translate(error) from error
        except ValueError as error:  # for an invalid topic name
            raise translate(error) from error
        except RuntimeError as error:
            # All that confluent-kafka raises it for is a client that was closed.
            raise ClosedError(f"the consumer's client is closed: {error}") from error
        finally:
            _IDENTITY.reset(token)


def _ours(partitions: Iterable[ClientTopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(tp.topic, tp.partition) for tp in partitions]


def _theirs(offsets: Mapping[TopicPartition, int]) -> list[ClientTopicPartition]:
    return [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]


def _known(partitions: Iterable[ClientTopicPartition]) -> dict[TopicPartition, int | None]:
    """The offsets of an answer; ``None`` for the client's negative ones, which say that there is none."""
    offsets: dict[TopicPartition, int | None] = {}
    for tp in partitions:
        if tp.error is not None:
            raise translate(tp.error)
        offsets[TopicPartition(tp.topic, tp.partition)] = tp.offset if tp.offset >= 0 else None
    return offsets
