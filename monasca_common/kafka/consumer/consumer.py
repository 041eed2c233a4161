# SPDX-License-Identifier: Apache-2.0
"""`KafkaConsumer`: reads batches, commits explicit offsets, and tracks its partitions."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monasca_common.kafka.clock import Clock, Signal, check_seconds
from monasca_common.kafka.consumer.assignment import Assignment, Positions
from monasca_common.kafka.consumer.commit import CommitResult, Committer, check_offsets
from monasca_common.kafka.consumer.poll_results import PollErrors
from monasca_common.kafka.consumer.rebalance import RebalanceListener, Rebalancer
from monasca_common.kafka.consumer.start_offsets import NO_EPOCH, StartPositions
from monasca_common.kafka.errors import (
    ClosedError,
    InCallbackError,
    MessagingError,
    MisuseError,
    StaleCommit,
    TransportError,
    WrongType,
)
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.message import Batch, Columns, OffsetAndEpoch, PartitionBatch, TopicPartition
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.kafka.transport.base import ConsumerTransport, Fetched
from monasca_common.kafka.transport.bounded import BoundedConsumer
from monasca_common.kafka.transport.topic_watch import TopicWatch

LOG = logging.getLogger(__name__)

_NOTHING = Batch()
_NOT_OWNED = -1
_MOST_MESSAGES = 1_000_000  # the client's limit
_ANSWER_SECONDS = 5.0
_NAP_SECONDS = 0.1
_LEAVE_SECONDS = 1.0
_REVOKE_SHARE = 0.5  # share of max.poll.interval.ms, because a revoke that exceeds it ends the membership


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """The state of a consumer. ``last_client_error``: the last client-wide error; ``seconds_since_poll``:
    ``None`` before the first poll; ``listener_failures``: the number of exceptions that the rebalance listener raised;
    ``oldest_call_seconds``: the age of the oldest client call that has not returned, or 0 if there is none;
    ``poisoned``: whether a call did not return by its deadline, so that every call of this consumer raises
    `FatalError`; ``driver``: ``native``, ``confluent`` or ``memory``."""

    last_client_error: TransportError | None
    seconds_since_poll: float | None
    listener_failures: int
    oldest_call_seconds: float
    poisoned: bool
    driver: str = ""


class KafkaConsumer:
    """Reads ``settings.topics`` as a member of ``settings.group_id``, or reads exactly ``partitions``.

    One thread polls, seeks, pauses and closes; any thread may call `commit`, `lag`, `health` and other queries. Each
    offset is that of the *next* message to read. The first call connects; close the consumer after use.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        transport: ConsumerTransport,
        *,
        listener: RebalanceListener | None = None,
        partitions: Iterable[TopicPartition] | None = None,
    ) -> None:
        self.settings = settings
        self._guard = ForkGuard("KafkaConsumer", in_child=self._enter_child)
        self._assignment = Assignment()
        self._errors = PollErrors(transport.clock, self._assignment)
        transport.on_error = self._errors.report_client_error
        self._transport = transport = BoundedConsumer(transport)
        self._clock = transport.clock
        self._chosen = None if partitions is None else [_as_partition(tp) for tp in partitions]
        topics = settings.topics if self._chosen is None else tuple(sorted({tp.topic for tp in self._chosen}))
        self._topics = topics
        self._positions = Positions(transport, self._assignment)
        self._committer = Committer(transport.thread, transport, self._refusal)
        self._starts = StartPositions(transport, self._committer, settings.start, in_group=self._chosen is None)
        self._rebalancer = Rebalancer(
            transport,
            self._assignment,
            self._starts,
            self._committer,
            self._errors.report,
            stop_seconds=min(settings.stop_timeout_seconds, settings.max_poll_interval_seconds * _REVOKE_SHARE),
        )
        self._rebalancer.listener = listener or RebalanceListener()
        self._watch = TopicWatch(transport, topics, settings.topic_check_seconds)
        self._opening = threading.RLock()
        self._opened = False
        self._closed = False
        self._interrupted = False
        self._polled_at: float | None = None
        self._nap = Signal()

    def __enter__(self) -> KafkaConsumer:
        self._ready()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def listener(self) -> RebalanceListener:
        """The rebalance listener. To add another one, replace this listener with a wrapper before the first poll."""
        return self._rebalancer.listener

    @listener.setter
    def listener(self, listener: RebalanceListener) -> None:
        self._rebalancer.listener = listener

    def poll(self, max_messages: int = 500, timeout: float = 1.0) -> Batch:
        """Return up to ``max_messages`` once a message is available, or an empty batch after ``timeout`` seconds.
        Rebalances happen in this method, so call it at least every ``max_poll_interval_seconds``. ``batch.errors`` has
        errors that do not stop the consumer: `OffsetOutOfRange` for a partition that now waits for a `seek`,
        `AuthorizationError`, or the error of an unknown start offset. A lasting error is repeated at most once a
        second. Once a recreated topic is detected, or the client has failed, every poll raises `TopicRecreated`, or
        the `TransportError` of the failure.
        """
        self._ready()
        self._not_in_callback("poll")
        if not isinstance(max_messages, int) or not 0 < max_messages <= _MOST_MESSAGES:
            raise MisuseError(f"max_messages is {max_messages!r}: it must be an integer from 1 to {_MOST_MESSAGES}")
        timeout = check_seconds(timeout)
        if (failure := self._watch.failure or self._errors.fatal) is not None:
            raise failure.with_traceback(None)  # without the traceback of an earlier raise
        if self._interrupted:
            self._rebalancer.catch_up()
            self._positions.rewind(self._assignment.owned)
        self._assignment.doubtful.clear()
        # From here on, an exception (Ctrl-C) discards messages of this poll; the next poll reads them again.
        self._interrupted = True
        if self._assignment.waiting:
            self._rebalancer.retry_starts()
        fetched, ends = self._fetch(max_messages, timeout)
        parts = self._owned_parts(fetched.parts)
        self._positions.rewind(self._assignment.reach_ends(ends))
        batch = Batch(parts, self._errors.pending)
        positions = self._assignment.positions
        if parts:
            positions = positions | {part.topic_partition: part.next_offset for part in parts}
        polled_at = self._clock.monotonic()
        # No function is called before the return, so an interrupt occurs either before or after all of these lines.
        self._assignment.positions = positions
        self._errors.pending = ()
        self._polled_at = polled_at
        self._interrupted = False
        if batch.partitions or batch.errors:
            return batch
        if fetched and timeout > 0:
            # The poll returned only repeated errors, so wait to prevent the caller's loop from spinning.
            self._nap.wait(self._clock, min(_NAP_SECONDS, timeout))
        return _NOTHING

    def _fetch(self, max_messages: int, timeout: float) -> tuple[Fetched, dict[TopicPartition, int]]:
        """Return the client's result and the ends of logs. If only ends were reached, keep waiting for a message."""
        errors, ends = self._errors, dict[TopicPartition, int]()
        deadline = self._clock.monotonic() + timeout
        while True:
            fetched = self._transport.poll(max_messages, timeout)
            if not fetched.events:
                return fetched, ends
            errors.sort(fetched.events)
            ends |= errors.ends
            timeout = deadline - self._clock.monotonic()
            if fetched.parts or errors.pending or len(errors.ends) < len(fetched.events):
                return fetched, ends
            if timeout <= 0:
                return Fetched(), ends

    def _owned_parts(self, fetched: Sequence[tuple[TopicPartition, Columns]]) -> tuple[PartitionBatch, ...]:
        assignment = self._assignment
        parts = []
        for partition, columns in fetched:
            epoch = assignment.epoch(partition)
            if epoch is None or partition in assignment.waiting:
                continue
            part = PartitionBatch(partition, epoch, columns, assignment.positions[partition])
            offsets = part.offsets  # in rare cases, librdkafka returns to an earlier offset
            if partition in assignment.doubtful or offsets[0] < part.start_offset or offsets != sorted(offsets):
                assignment.doubtful.add(partition)
                self._positions.rewind([partition])
            else:
                parts.append(part)
        return tuple(parts)

    def commit(
        self, what: Batch | Mapping[TopicPartition, int | OffsetAndEpoch], timeout: float | None = None
    ) -> Mapping[TopicPartition, CommitResult]:
        """Commit a whole batch, or next offsets, and wait up to ``timeout`` seconds for the responses.

        Default timeout: ``stop_timeout_seconds``. A commit in `RebalanceListener.revoked` never exceeds its deadline.
        A batch or `OffsetAndEpoch` of an assignment that has ended is not sent, and its result is ``stale``; a plain
        offset belongs to the current assignment. Raises only `MisuseError`.
        """
        self._ready()
        progress = self._progress(what)
        if not progress:
            return {}
        budget = self.settings.stop_timeout_seconds if timeout is None else check_seconds(timeout)
        if (deadline := self._rebalancer.deadline) is not None:
            budget = min(budget, max(0.0, deadline - self._clock.monotonic()))
        return self._committer.commit(progress, budget)

    def next_offsets(self, what: Batch | Mapping[TopicPartition, int | OffsetAndEpoch]) -> dict[TopicPartition, int]:
        """Return the offsets for a transaction to commit. Raises `StaleCommit` if one of their assignments has
        ended."""
        self._ready()
        progress = self._progress(what)
        for partition, at in progress.items():
            if (refusal := self._refusal(partition, at)) is not None:
                raise refusal
        return {partition: at.next_offset for partition, at in progress.items()}

    def group_metadata(self) -> Any:
        """Return the metadata of the group for a transaction. Call this method at each use, because every rebalance
        makes the metadata stale."""
        self._ready()
        return self._transport.group_metadata()

    def _progress(self, what: object) -> dict[TopicPartition, OffsetAndEpoch]:
        if isinstance(what, Batch):
            return {part.topic_partition: OffsetAndEpoch(part.epoch, part.next_offset) for part in what.partitions}
        if not isinstance(what, Mapping):
            kind = type(what).__name__
            raise WrongType(f"commit a Batch, or a mapping from TopicPartition to the next offset, not {kind}")
        progress = {}
        for partition, at in what.items():
            tp = _as_partition(partition)
            progress[tp] = (
                at if isinstance(at, OffsetAndEpoch) else OffsetAndEpoch(self._assignment.epoch(tp) or _NOT_OWNED, at)
            )
        check_offsets({tp: at.next_offset for tp, at in progress.items()})
        return progress

    def _refusal(self, partition: TopicPartition, at: OffsetAndEpoch) -> MessagingError | None:
        if (failure := self._watch.failure) is not None and failure.topic == partition.topic:
            return failure
        if at.epoch in (NO_EPOCH, self._assignment.epoch(partition)):
            return None
        return StaleCommit(
            f"offset {at.next_offset} of {partition.topic}/{partition.partition} was not committed, because the "
            "partition was never assigned or was revoked in the meantime: its owner resumes from the committed offset"
        )

    def assignment(self) -> set[TopicPartition]:
        self._ready()
        return self._assignment.owned

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to poll, or ``None`` if the partition is not owned or its start is unknown."""
        self._ready()
        return self._assignment.positions.get(_as_partition(partition))

    def take_ends(self) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return the partitions whose logs `poll` has read to the end since the last call, with these ends.

        The end is the next offset to be written; for a reader of committed messages, it is the last stable offset. It
        is after `position` if the log ends with records that are not messages: control records, aborted or compacted
        messages.
        """
        self._ready()
        return self._assignment.take_ends()

    def partition_count(self, topic: str, timeout: float = 10.0) -> int:
        """Return the number of partitions of any topic. Raises `TransportError`, for example for an unknown topic."""
        self._ready()
        return self._transport.partition_count(topic, check_seconds(timeout))

    def topic_ids(self, timeout: float = 10.0) -> dict[str, str]:
        """Return the id of each topic of this consumer, if the broker reports it; a recreated topic has a new id.

        The result is empty if ``topic_check_seconds`` is 0. Raises `TransportError`.
        """
        self._ready()
        if not self.settings.topic_check_seconds:
            return {}
        return self._transport.topic_ids(self._topics, check_seconds(timeout))

    def resolve_starts(self, partitions: Iterable[TopicPartition], timeout: float = 5.0) -> dict[TopicPartition, int]:
        """Return the offsets of the option ``start``, regardless of committed offsets. Call this in
        `RebalanceListener.assigned` if the listener stores offsets elsewhere and has not stored any yet.

        Raises `TransportError`.
        """
        self._ready()
        return self._starts.resolve([_as_partition(tp) for tp in partitions], timeout)

    def lag(self, timeout: float = 1.0) -> dict[TopicPartition, int]:
        """Return the lag of each owned partition in messages, from the last fetch if available."""
        self._ready()
        return self._positions.lag(timeout)

    def health(self) -> ConsumerHealth:
        polled = self._polled_at
        return ConsumerHealth(
            last_client_error=self._errors.last_client_error,
            seconds_since_poll=None if polled is None else self._clock.monotonic() - polled,
            listener_failures=self._rebalancer.listener_failures,
            oldest_call_seconds=self._transport.thread.oldest_seconds(),
            poisoned=self._transport.poisoned,
            driver=self._transport.driver,
        )

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read ``offset`` next; this also restarts a partition whose position was out of range."""
        self._move({_as_partition(partition): offset})

    def seek_to_time(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Resume from the first message at or after each time (ms since 1970), or from the end if there is no such
        message."""
        self._ready()
        for time_ms in times_ms.values():
            if not isinstance(time_ms, int) or not 0 <= time_ms < 2**63:  # for the client, -1 means the end
                raise MisuseError(
                    f"{time_ms!r} is not a time: use milliseconds since the epoch, an integer of at least 0"
                )
        return self._move(self._transport.offsets_for_times(times_ms, _ANSWER_SECONDS) if times_ms else {})

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Resume from the first message in the log, by default in all owned partitions. Return the offsets."""
        return self._move(self._transport.first_offsets(self._mine(partitions), _ANSWER_SECONDS))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Skip all messages that are in the log now, by default in all owned partitions. Return the offsets."""
        return self._move(self._transport.end_offsets(self._mine(partitions), _ANSWER_SECONDS))

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Resume from the committed offsets, or from the start of this assignment. Return the offsets."""
        committed = self._transport.committed(self._mine(partitions), _ANSWER_SECONDS)
        starts, owned = self._assignment.starts, self._assignment.owned
        # A listener's start is not committed. Partitions may have been revoked while the offsets were requested.
        known = {tp: starts.get(tp) if offset is None else offset for tp, offset in committed.items() if tp in owned}
        return self._move({tp: offset for tp, offset in known.items() if offset is not None})

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no messages of these partitions until they are resumed or revoked; unowned ones are ignored."""
        mine = self._mine(partitions)
        self._assignment.paused.update(mine)
        self._rebalancer.apply_pauses(mine)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        mine = self._mine(partitions)
        self._assignment.paused.difference_update(mine)
        self._rebalancer.apply_pauses(mine)

    def _mine(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        self._ready()
        owned = self._assignment.owned
        return sorted(owned if partitions is None else owned.intersection(map(_as_partition, partitions)))

    def _move(self, positions: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        self._ready()
        if self._rebalancer.callback == "assigned":
            raise InCallbackError("a seek within `assigned` is too early: return the offsets from `assigned` instead")
        self._positions.move(positions)
        self._rebalancer.apply_pauses(list(positions))
        return positions

    def limit_calls(self, until: float | None) -> None:
        """End every call of this consumer, including current calls, at ``until`` (in the clock's monotonic time): they
        raise `RetriableError`, and the result of a commit is `CommitUnknown`. ``None``: no limit. Any thread or signal
        handler can call this. `close` has its own time-out and removes the limit.
        """
        self._transport.limit(math.inf if until is None else until)

    def close(self, timeout: float | None = None) -> None:
        """Release all partitions as in a revoke, and leave the group, within ``timeout`` (default
        ``stop_timeout_seconds``) plus one second. A second call, or one in a child process, has no effect."""
        if self._closed or self._guard.forked:
            return
        self._not_in_callback("close")
        self.limit_calls(None)
        budget = self.settings.stop_timeout_seconds if timeout is None else check_seconds(timeout)
        deadline = self._clock.monotonic() + budget
        self._watch.stop()
        try:
            self._rebalancer.release(sorted(self._assignment.owned), deadline)
        finally:
            self._closed = True
            left = max(_LEAVE_SECONDS, deadline - self._clock.monotonic())
            released = self._transport.thread.finish(self._transport.close, left)
            self._transport.topic_thread.finish(lambda: None, 0.0)
            if not released:
                LOG.warning(
                    "the consumer did not leave group %s in time; its session will expire", self.settings.group_id
                )

    def _ready(self) -> None:
        if self._closed or not self._opened:
            self._open()

    def _enter_child(self) -> None:
        self._opened = False  # so that every call checks the fork guard

    def _open(self) -> None:
        self._guard.check()
        if self._closed:
            raise ClosedError("this KafkaConsumer is closed: open another")
        with self._opening:
            if self._opened:
                return
            self._opened = True  # before the listener's calls
            try:
                if self._chosen is None:
                    self._transport.subscribe(self._topics, self._rebalancer)
                else:
                    self._rebalancer.begin(self._chosen, self._transport.assign)
                if self.settings.topic_check_seconds > 0:
                    self._watch.start()
            except BaseException:
                self._opened = False  # the next call opens again, for example after Ctrl-C
                raise

    def _not_in_callback(self, what: str) -> None:
        if self._rebalancer.callback is not None:
            raise InCallbackError(f"{what} within a rebalance listener would wait for itself: call it after the poll")


def _as_partition(given: object) -> TopicPartition:
    """Convert a pair of a topic and a number to a `TopicPartition`."""
    match given:
        case str(topic), int(number):
            return TopicPartition(topic, number)
    raise WrongType(f"a partition is a TopicPartition of a topic and a number, not {given!r}")
