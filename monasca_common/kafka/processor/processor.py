# SPDX-License-Identifier: Apache-2.0
"""`Processor`, the loop of a service: poll, decode, handle, retry or dead-letter, track, commit.

This module runs on the polling thread, which polls, fills the lanes and commits the gap-free prefix of done messages.
It never waits for a handler, so slow handlers and unavailable dependencies do not end the membership in the group. The
handler threads take tasks from the lanes and run them with `attempt`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigurationError,
    FatalError,
    FencedError,
    OffsetOutOfRange,
    RetriableError,
    StaleCommit,
    TopicRecreated,
    TransportError,
    WrongType,
)
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.log_limit import LogLimit
from monasca_common.kafka.message import OffsetAndEpoch, PartitionBatch, TopicPartition
from monasca_common.kafka.processor.attempt import Accounted, Attempts
from monasca_common.kafka.processor.dead_letters import DeadLetterPublisher, DeadLetters
from monasca_common.kafka.processor.handler_call import Caller, Handler
from monasca_common.kafka.processor.hooks import Hook, Hooks
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.publishing import AcknowledgedPublisher, OutputPublisher, TransactionalPublisher
from monasca_common.kafka.processor.queues import Backpressure, Lanes, Rewinds
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.processor.shutdown import Shutdown, StopReport
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.serialization.base import Serializer

LOG = logging.getLogger(__name__)

_POLL_SECONDS = 0.2  # the loop detects a stop, a failure and the end of a wait within this time
_PAUSED_POLL_SECONDS = 0.05  # only a poll detects that a paused partition has room again
_COMMIT_SECONDS = 1.0  # between commits
_COMMIT_PATIENCE_SECONDS = 5.0  # maximum wait of the polling thread for the response
_COMMIT_SHARE = 0.25  # maximum share of max.poll.interval.ms; a revoke immediately afterwards can take half of it
_STALL_SECONDS = 1.0  # time for a full buffer to drain before partitions are paused
_MAX_BUFFERED_MESSAGES = 50_000
_BUFFERED_BATCHES = 8  # for large batches: while two batches are handled, two or three more can fill
_ASK_AGAIN_SECONDS = 1.0
_HANDLERS_SHARE = 0.7  # share of the time to stop or to release partitions; the remainder is for the commit

# These end the loop, because a retry cannot succeed and an operator must act.
_FINAL_ERRORS = (OffsetOutOfRange, TopicRecreated, AuthorizationError, AuthenticationError, FencedError, FatalError)


class Processor(RebalanceListener):
    """Calls ``handler`` with messages of ``consumer``, until `stop` or an error that no retry can repair.

    ``handler(batch)`` receives a `PartitionBatch` (with ``per_message``: a `Message`) and returns ``None`` or outputs,
    an iterable of ``(topic, Record)`` or `Output`. It raises `RetryLater` (a dependency is unavailable: the same
    messages are handled again, without limit), `Poison` (dead letters immediately) or `ReadFrom` (to read from an
    earlier offset). After any other exception the messages are tried ``retry.attempts`` times, then in halves, until
    one message fails by itself. This message becomes a dead letter, or without ``dead_letters`` ends `run` with
    `HandlerError`. With several ``threads``, calls are concurrent, but at most one per partition (``order="key"``: per
    key). A batch has the messages that arrived during the previous call, up to the consumer's ``batch_size``, and waits
    up to ``max_wait_seconds`` to reach that size.

    ``producer`` sends outputs and dead letters. ``transactional``: outputs and offsets are committed in one
    transaction; an output that can never be delivered (too large) then ends `run` with `HandlerError`. ``serializer``
    decodes values; a message whose value cannot be decoded becomes a dead letter immediately. The consumer's settings
    limit the buffer, the uncommitted messages and the time to stop. The caller closes the consumer and the producer.

    ``accounted(partition, start, end)`` is for a handler that stores positions elsewhere (in a database, with its
    rows). It moves the position from ``start`` to ``end``, past offsets that need no handler: acknowledged dead
    letters, and offsets without a message. A handler thread calls it before the commit to Kafka; it raises `RetryLater`
    while the store is unavailable, and `ReadFrom` if the position is below ``start``.
    """

    def __init__(
        self,
        consumer: KafkaConsumer,
        handler: Handler,
        *,
        producer: KafkaProducer | None = None,
        retry: RetryPolicy | None = None,
        dead_letters: DeadLetters | None = None,
        order: Literal["partition", "key"] = "partition",
        threads: int = 1,
        serializer: Serializer | None = None,
        per_message: bool = False,
        transactional: bool = False,
        max_wait_seconds: float = 0.0,
        accounted: Accounted | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        _check_arguments(
            producer, dead_letters, order, threads, transactional=transactional, accounts=accounted is not None
        )
        self._consumer = consumer
        self._settings = consumer.settings
        self._clock = consumer.clock
        if self._settings.connection.tracing != "off":
            from monasca_common.kafka.tracing import TracingHook

            hooks = (TracingHook(self._settings), *hooks)
        self._hooks = Hooks(hooks)
        self._log_limit = LogLimit(self._clock)
        self._lanes = Lanes(
            self._clock, by_key=order == "key", batch_size=self._settings.batch_size, fill_seconds=max_wait_seconds
        )
        self._tracker = OffsetTracker(self._settings.max_uncommitted_messages)
        self._rewinds = Rewinds(consumer, self._lanes, self._tracker)
        self._shutdown = Shutdown(self._clock, self._settings)
        publisher: OutputPublisher | None = None
        self._transactions: TransactionalPublisher | None = None
        self._dead_letters: DeadLetterPublisher | None = None
        if producer is not None and transactional:
            publisher = self._transactions = TransactionalPublisher(
                producer, consumer, self._lanes, self._tracker, self._hooks
            )
        elif producer is not None:
            publisher = AcknowledgedPublisher(producer, self._clock, self._log_limit)
        if dead_letters is not None and publisher is not None:
            self._dead_letters = DeadLetterPublisher(
                dead_letters, self._settings, self._clock, self._hooks, publisher, self._log_limit
            )
        self._attempts = Attempts(
            Caller(handler=handler, serializer=serializer, group=self._settings.group_id, per_message=per_message),
            retry or RetryPolicy(),
            self._clock,
            self._lanes,
            self._tracker,
            self._rewinds,
            self._hooks,
            publisher,
            self._dead_letters,
            self._shutdown,
            accounted,
            self._log_limit,
            self._log_ignored,
            self._fail,
            transactional,
        )
        # Daemons: a handler that never returns must not prevent the process from ending after its deadline.
        self._handlers = [
            threading.Thread(target=self._attempts.run, name=f"kafka-handler-{number}", daemon=True)
            for number in range(threads)
        ]
        self._started = 0
        most = max(_MAX_BUFFERED_MESSAGES, self._settings.batch_size * _BUFFERED_BATCHES)
        self._backpressure = Backpressure(most, self._settings.buffer_bytes)
        self._next_commit = 0.0
        self._patience_seconds = min(_COMMIT_PATIENCE_SECONDS, self._settings.max_poll_interval_seconds * _COMMIT_SHARE)
        self._inner_listener = consumer.listener  # the caller's listener, which is called after this one
        self._chosen: set[TopicPartition] = set()  # partitions whose start the caller's listener returned
        self.ignored_errors: Counter[str] = Counter()  # temporary errors and `RetryLater`, by class
        self._counting = threading.Lock()  # for `ignored_errors`, which several threads update

    def run(self) -> StopReport:
        """Run until `stop`, and return the uncommitted work; raise the error that ends the run. Can be called only
        once; another `Processor` with the same consumer starts at the first messages that are not done."""
        if self._attempts.caller.is_async:
            raise WrongType("Processor: the handler is an async def: await kafka.aio.AsyncProcessor(processor).run()")
        self._shutdown.begin()
        try:
            self._begin()
            while not self._shutdown.requested:
                self._turn()
        except BaseException as error:
            self._fail(error)
        return self._shutdown.conclude(self._wind_down)

    def stop(self, deadline: float | None = None) -> StopReport:
        """Start no more calls, wait up to ``deadline`` seconds for handlers and their outputs, commit, and return the
        uncommitted work. Default: the consumer's ``stop_timeout_seconds``; maximum: half of
        ``max_poll_interval_seconds``. Other threads and signal handlers can call this. On a handler thread and on the
        thread that runs the loop, it does not wait; on others, it waits until at most five seconds after the deadline.
        If the run has not ended by then, the report has the current state."""
        self._shutdown.request(deadline)
        if not self._shutdown.over.is_set():
            self._consumer.limit_calls(self._shutdown.until)
        self._lanes.halt()
        if threading.current_thread() not in self._handlers:
            self._shutdown.wait()
        return self._shutdown.report or self._report()

    @property
    def consumer(self) -> KafkaConsumer:
        """The consumer that the processor polls."""
        return self._consumer

    def observe(self, hook: Hook) -> None:
        """Add a hook. Call this before `run`."""
        self._hooks.add(hook)

    def retry_now(self) -> None:
        """End all waits after failures and `RetryLater`; call it when the dependency is available again."""
        self._lanes.wake(math.inf)

    def _turn(self) -> None:
        batch = self._consumer.poll(self._settings.batch_size, self._poll_seconds())
        for part in batch.partitions:
            self._tracker.received(part)  # also if an error below ends the run
        fail_point("processor.after_poll")
        self._hooks.call("after_poll", batch)
        for error in batch.errors:
            if isinstance(error, _FINAL_ERRORS):
                raise error
            self._log_ignored("temporary error while reading", error)
        if self._transactions is not None and self._transactions.aborted:
            self._transactions.rewind()
        else:
            void = self._rewinds.apply()
            for part in batch.partitions:
                if part.topic_partition not in void:
                    self._lanes.add(part)
            for partition, end in self._consumer.take_ends().items():
                if partition not in void:
                    self._reach_end(partition, end)
        self._lanes.wake()
        self._start_handlers()
        if self._clock.monotonic() >= self._next_commit or self._tracker.full():
            self._commit(self._patience_seconds)
            self._next_commit = self._clock.monotonic() + _COMMIT_SECONDS
        self._apply_backpressure()

    def _reach_end(self, partition: TopicPartition, end: OffsetAndEpoch) -> None:
        """Track the end of a partition's log. The range from the last message to ``end`` (control records, aborted and
        compacted messages) is done once all earlier messages are done, so that retention does not overtake the
        position."""
        start = self._consumer.position(partition)
        if start is None or start > end.next_offset:
            return
        if start == end.next_offset:
            if partition in self._chosen:
                # The partition started at a database's position and returned no message: after a crash, Kafka's commit
                # can be lower.
                self._chosen.discard(partition)
                self._tracker.start_at(partition, end)
            return
        part = PartitionBatch(partition, end.epoch, (), start, end.next_offset)
        self._tracker.reached(part)
        if self._lanes.ordered:
            self._lanes.add(part)
        else:
            self._tracker.done_range(partition, end.epoch, start, end.next_offset)

    def _begin(self) -> None:
        for topic in () if self._dead_letters is None else self._dead_letters.topics():
            what = f"cannot check yet whether dead-letter topic {topic} exists"
            try:
                self._repeat(what, partial(self._consumer.partition_count, topic))
            except TransportError as error:
                raise ConfigurationError(
                    f"dead-letter topic {topic!r} cannot be used ({error}): create it, or name another in "
                    "dead_letter_topic"
                ) from error
        if self._transactions is not None:
            self._repeat("transactions cannot begin yet", self._transactions.open)
        self._inner_listener, self._consumer.listener = self._consumer.listener, self

    def _start_handlers(self) -> None:
        """Start handler threads, up to the limit, until there is one for each lane that is ready or in a call. If the
        system cannot start more threads, the started ones handle all lanes."""
        for thread in self._handlers[self._started : self._lanes.demand()]:
            try:
                thread.start()
            except RuntimeError as error:
                if not self._started:
                    raise
                what = "too few handler threads: raise the system's thread limit, or configure fewer threads"
                self._log_ignored(what, error)
                return
            self._started += 1

    def _repeat(self, what: str, request: Callable[[], object]) -> None:
        """Send a request before the first poll, until the brokers respond or the run is stopped."""
        while not self._shutdown.requested:
            try:
                request()
                return
            except RetriableError as error:
                self._log_ignored(what, error)
                self._lanes.progress.wait(self._clock, _ASK_AGAIN_SECONDS)

    def _poll_seconds(self) -> float:
        longest = _PAUSED_POLL_SECONDS if self._backpressure.paused else _POLL_SECONDS
        due = self._lanes.next_wake()
        return longest if due is None else min(longest, max(0.0, due - self._clock.monotonic()))

    def _log_ignored(self, what: str, error: Exception) -> None:
        with self._counting:
            self.ignored_errors[type(error).__name__] += 1
        more = self._log_limit.admit(what, type(error).__name__, getattr(error, "name", None))
        if more is not None:
            LOG.warning("%s: %s%s", what, error, more)

    def _apply_backpressure(self) -> None:
        """Pause partitions that have too many messages in memory, and resume those that have few."""
        patience = self._clock.monotonic() + _STALL_SECONDS
        paused = self._backpressure.paused
        while True:
            loads = self._lanes.loads()
            wanted = self._backpressure.wanted(self._consumer.assignment(), loads, self._tracker.full())
            left = patience - self._clock.monotonic()
            if wanted <= paused or not self._backpressure.is_full(loads) or left <= 0 or self._shutdown.requested:
                break
            self._lanes.progress.wait(self._clock, left)
        if wanted - paused:
            self._consumer.pause(wanted - paused)
        if paused - wanted:
            self._consumer.resume(paused - wanted)
        self._backpressure.paused = wanted

    def _commit(self, patience_seconds: float, partitions: Sequence[TopicPartition] | None = None) -> None:
        """Commit the gap-free prefix of done messages. Offsets without a response are committed again later."""
        progress = self._tracker.committable()
        if partitions is not None:
            progress = {partition: at for partition, at in progress.items() if partition in partitions}
        if not progress:
            return
        self._hooks.call("before_commit", {partition: at.next_offset for partition, at in progress.items()})
        fail_point("processor.before_commit")
        results = self._consumer.commit(progress, patience_seconds)
        stored = {partition: progress[partition] for partition, result in results.items() if result.committed}
        self._tracker.committed(stored)
        for error in {id(result.error): result.error for result in results.values() if result.error}.values():
            if isinstance(error, _FINAL_ERRORS):
                self._fail(error)
            elif not isinstance(error, StaleCommit):
                self._log_ignored("a commit will be repeated", error)
        self._hooks.call("after_commit", {partition: result.error for partition, result in results.items()})

    # Rebalances and shutdown

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        starts = self._inner_listener.assigned(partitions)
        self._chosen.update(starts or ())
        return starts

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        self._chosen.difference_update(partitions)
        try:
            self._release(partitions, deadline)
        finally:
            self._inner_listener.revoked(partitions, deadline)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._chosen.difference_update(partitions)
        try:
            self._forget(partitions)
            self._hooks.call("after_lost", partitions)
        finally:
            self._inner_listener.lost(partitions)

    def _release(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        """Finish or abandon tasks in flight and commit done messages, until ``deadline`` (monotonic)."""
        try:
            self._lanes.close(partitions)
            fail_point("processor.during_revoke")
            now = self._clock.monotonic()
            if not self._lanes.wait_idle(partitions, now + (deadline - now) * _HANDLERS_SHARE):
                LOG.warning(
                    "handlers still have messages of %d revoked partitions; these are read again", len(partitions)
                )
            self._commit(max(0.0, deadline - self._clock.monotonic()), partitions)
        finally:
            self._forget(partitions)
        self._hooks.call("after_revoke", partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        self._lanes.drop(partitions)
        self._tracker.forget(partitions)
        self._rewinds.forget(partitions)
        self._backpressure.forget(partitions)
        if self._dead_letters is not None:
            self._dead_letters.count.forget(partitions)

    def _fail(self, error: BaseException) -> None:
        self._shutdown.fail(error)
        self._lanes.halt()

    def _wind_down(self) -> StopReport:
        self._shutdown.request(None)
        self._lanes.halt()
        partitions = self._lanes.partitions()
        try:
            now, until = self._clock.monotonic(), self._shutdown.until
            self._lanes.wait_idle(partitions, now + (until - now) * _HANDLERS_SHARE)
            self._commit(max(0.0, until - self._clock.monotonic()))
            return self._report()
        finally:
            try:
                self._hand_back()
            finally:
                self._consumer.limit_calls(None)
                self._forget(sorted(partitions))
                self._lanes.shut()
                self._consumer.listener = self._inner_listener

    def _hand_back(self) -> None:
        """Move the consumer back to the messages that are not done, and resume the paused partitions, because another
        processor can use the consumer. Log errors."""
        try:
            aborted = self._transactions is not None and self._transactions.aborted
            if aborted:
                self._consumer.seek_to_committed()
            for partition in () if aborted else self._tracker.unfinished():
                undone = self._tracker.first_undone(partition)
                if undone is not None and self._consumer.position(partition) is not None:
                    self._consumer.seek(partition, undone)
            if self._backpressure.paused:
                self._consumer.resume(self._backpressure.paused)
        except Exception as error:
            LOG.warning("cannot move the consumer back; open another one for the next processor: %s", error)

    def _report(self) -> StopReport:
        return StopReport(
            committed=self._tracker.confirmed(),
            unconfirmed={partition: at.next_offset for partition, at in self._tracker.committable().items()},
            left=self._tracker.unfinished(),
            in_flight=self._lanes.in_flight(self._lanes.partitions()),
        )


def _check_arguments(
    producer: KafkaProducer | None,
    dead_letters: DeadLetters | None,
    order: str,
    threads: int,
    *,
    transactional: bool,
    accounts: bool,
) -> None:
    """Raise `ConfigurationError` with the remedy for the first broken rule."""
    rules = (
        (order in ("partition", "key"), f"order={order!r}: it must be 'partition' or 'key'"),
        (threads >= 1, f"threads={threads}: at least 1 thread must call the handler"),
        (
            dead_letters is None or producer is not None,
            "dead_letters without a producer: pass the producer that sends them",
        ),
        (not transactional or producer is not None, "transactional without a producer: pass a transactional one"),
        (
            producer is None or transactional == (producer.settings.transactional_id is not None),
            "transactional and the producer's transactional_id belong together: set both, or neither",
        ),
        (
            not (transactional and order == "key"),
            "transactional with order='key': offsets in a transaction must not skip messages; use order='partition'",
        ),
        (
            not (accounts and (order == "key" or transactional)),
            "accounted excludes order='key' and transactional: a position stored elsewhere needs partition order",
        ),
    )
    for holds, remedy in rules:
        if not holds:
            raise ConfigurationError(f"Processor: {remedy}")
