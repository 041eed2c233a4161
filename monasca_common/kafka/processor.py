# SPDX-License-Identifier: Apache-2.0
"""`Processor`: THE loop. Poll, decode, handle, retry or dead-letter, track, commit.

The polling thread (`run`) polls, fills the lanes and commits; it never waits for a handler, so the group membership
outlives any handler and any dependency. The handler threads take tasks from the lanes (`_attempt`): what a handler
returns is acknowledged before its input counts as done, and only the gap-free prefix of what is done is committed.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from monasca_common.kafka.backpressure import Backpressure
from monasca_common.kafka.consumer import KafkaConsumer
from monasca_common.kafka.dead_letter import DeadLetters
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigurationError,
    FatalError,
    FencedError,
    HandlerError,
    MessagingError,
    MisuseError,
    OffsetOutOfRange,
    Poison,
    ReadFrom,
    RetriableError,
    RetryLater,
    StaleCommit,
    TopicRecreated,
    TransportError,
    UndeliveredError,
)
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.hooks import Hook, Hooks
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.offsets import OffsetTracker
from monasca_common.kafka.processing.calling import Caller, Handler
from monasca_common.kafka.processing.choices import check_choices
from monasca_common.kafka.processing.dead_letter_office import DeadLetterOffice
from monasca_common.kafka.processing.decoding import Undecodable
from monasca_common.kafka.processing.detours import Detours
from monasca_common.kafka.processing.hand_over import HandOver
from monasca_common.kafka.processing.lanes import Lane, Lanes, Task
from monasca_common.kafka.processing.outbox import Abandoned, Outbox
from monasca_common.kafka.processing.stopping import Ending, StopReport
from monasca_common.kafka.processing.transactional_outbox import TransactionalOutbox
from monasca_common.kafka.processing.workers import Workers
from monasca_common.kafka.producer import KafkaProducer
from monasca_common.kafka.retry import RetryPolicy
from monasca_common.kafka.serialization.base import Serializer

LOG = logging.getLogger(__name__)

_POLL_SECONDS = 0.2  # a stop, a failure and a finished rest are noticed within this
_PAUSED_POLL_SECONDS = 0.05  # nothing else tells that a paused partition has room again
_COMMIT_SECONDS = 1.0  # between commits
_COMMIT_PATIENCE_SECONDS = 5.0  # for the answer; the polling thread waits for it
_COMMIT_SHARE = 0.25  # of max.poll.interval at most: a revoke that comes right after has half of it
_STALL_SECONDS = 1.0  # a full buffer is given this long to drain before partitions are paused
_MAX_BUFFERED_MESSAGES = 50_000
_BUFFERED_BATCHES = 8  # where those are large: with two at work, two or three others are full
_ASK_AGAIN_SECONDS = 1.0
_HANDLERS_SHARE = 0.7  # of the time to stop or to give partitions up; the rest is for the commit

# The loop ends with these: nothing gets better by trying again, and silence would hide it.
_ENDING = (OffsetOutOfRange, TopicRecreated, AuthorizationError, AuthenticationError, FencedError, FatalError)


class _Next(NamedTuple):
    """What remains of a task, in order, and how long its lane rests before it goes on."""

    tasks: tuple[Task, ...] = ()
    rest_seconds: float = 0.0


class Processor:
    """Calls ``handler`` with what ``consumer`` reads, until `stop` or an error that nobody can retry away.

    ``handler(batch)`` gets a `PartitionBatch` (with ``per_message``: a `Message`) and returns nothing or outputs, an
    iterable of ``(topic, Record)`` or `Output`. It raises `RetryLater` (a dependency is away: the same messages come
    again, for ever), `Poison` (dead letters now), `ReadFrom` (it needs an earlier offset), or anything else: tried
    ``retry.attempts`` times, then in halves, then the one message that fails goes to the dead letters, or ends `run`
    with `HandlerError` without them.
    With several ``threads`` it is called concurrently, one call a partition (``order="key"``: one call a key).
    A batch has what came while the one before it was handled, up to the consumer's ``batch_size``, and waits
    ``max_wait_seconds`` at most to be as large as that.

    ``producer`` sends outputs and dead letters. ``transactional``: outputs and offsets become visible in one
    transaction; an output refused for what it is (too large) then ends `run` with `HandlerError`.
    ``serializer`` decodes values; one that cannot be decoded is a dead letter at once. The consumer's settings
    bound the buffer, the span of uncommitted work and the time to stop. Consumer and producer stay their opener's.
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
        hooks: Iterable[Hook] = (),
    ) -> None:
        check_choices(producer, dead_letters, order, threads, transactional=transactional)
        self._consumer = consumer
        self._settings = consumer.settings
        self._clock = consumer.clock
        self._caller = Caller(handler, serializer, consumer.settings.group_id, per_message=per_message)
        self._retry = retry or RetryPolicy()
        self._hooks = Hooks(hooks)
        self._lanes = Lanes(
            self._clock,
            shares=threads if order == "key" else 1,
            batch_size=self._settings.batch_size,
            fill_seconds=max_wait_seconds,
        )
        self._tracker = OffsetTracker(self._settings.max_uncommitted_messages)
        self._detours = Detours(consumer, self._lanes, self._tracker)
        self._outbox: Outbox | TransactionalOutbox | None = None
        self._transactions: TransactionalOutbox | None = None
        self._dead_letters: DeadLetterOffice | None = None
        if producer is not None and transactional:
            self._outbox = self._transactions = TransactionalOutbox(producer, consumer, self._lanes, self._tracker)
        elif producer is not None:
            self._outbox = Outbox(producer, self._clock)
        if dead_letters is not None and self._outbox is not None:
            self._dead_letters = DeadLetterOffice(dead_letters, self._settings, self._clock, self._hooks, self._outbox)
        self._workers = Workers(self._lanes, threads, self._work, self._fail)
        most = max(_MAX_BUFFERED_MESSAGES, self._settings.batch_size * _BUFFERED_BATCHES)
        self._backpressure = Backpressure(most, self._settings.buffer_bytes)
        self._committed: dict[TopicPartition, int] = {}
        self._next_commit = 0.0
        self._patience_seconds = min(_COMMIT_PATIENCE_SECONDS, self._settings.max_poll_interval_seconds * _COMMIT_SHARE)
        self._ending = Ending(self._clock, self._settings)
        self._hand_over = HandOver(consumer, self)
        self.ignored_errors: Counter[str] = Counter()  # passing errors of polls and commits, by class

    def run(self) -> StopReport:
        """Work until `stop` (then return what was left) or until something ends it (then raise that). Once only."""
        self._ending.begin()
        try:
            self._begin()
            while not self._ending.requested:
                self._turn()
        except BaseException as error:
            self._fail(error)
        return self._ending.conclude(self._wind_down)

    def stop(self, deadline: float | None = None) -> StopReport:
        """Hand out nothing more, wait up to ``deadline`` seconds for handlers and their outputs, commit, and tell
        what was left. ``None``: the consumer's ``stop_timeout_seconds``; never more than half of
        ``max_poll_interval_seconds``. For other threads and signal handlers; called by a handler, or by the
        thread that runs the loop, it does not wait: the report is of that moment.
        """
        self._ending.request(deadline)
        self._lanes.halt()
        if threading.current_thread() not in self._workers:
            self._ending.wait()
        return self._ending.report or self._report()

    # The polling thread

    def _turn(self) -> None:
        batch = self._consumer.poll(self._settings.batch_size, self._poll_seconds())
        fail_point("processor.after_poll")
        self._hooks.tell("after_poll", batch)
        for error in batch.errors:
            self._look_at(error)
        if self._transactions is not None and self._transactions.aborted:
            self._transactions.rewind()
        else:
            void = self._detours.take()
            for part in batch.partitions:
                if part.topic_partition not in void:
                    self._tracker.received(part)
                    self._lanes.add(part)
        self._lanes.wake()
        if self._clock.monotonic() >= self._next_commit or self._tracker.full():
            self._commit(self._patience_seconds)
            self._next_commit = self._clock.monotonic() + _COMMIT_SECONDS
        self._hold_back()

    def _begin(self) -> None:
        if self._dead_letters is not None:
            for topic in self._dead_letters.topics():
                self._require_topic(topic)
        self._hand_over.attach()
        self._workers.start()

    def _require_topic(self, topic: str) -> None:
        try:
            while not self._ending.requested:
                try:
                    self._consumer.partition_count(topic)
                    return
                except RetriableError as error:
                    LOG.warning("it is not known yet whether dead-letter topic %s exists: %s", topic, error)
                    self._lanes.bell.wait(_ASK_AGAIN_SECONDS)
        except TransportError as error:
            raise ConfigurationError(
                f"dead-letter topic {topic!r} cannot be used ({error}): create it, or name another in dead_letter_topic"
            ) from error

    def _poll_seconds(self) -> float:
        longest = _PAUSED_POLL_SECONDS if self._backpressure.paused else _POLL_SECONDS
        due = self._lanes.next_wake()
        return longest if due is None else min(longest, max(0.0, due - self._clock.monotonic()))

    def _look_at(self, error: Exception) -> None:
        if isinstance(error, _ENDING):
            raise error
        self.ignored_errors[type(error).__name__] += 1
        LOG.warning("a passing error while reading: %s", error)

    def _hold_back(self) -> None:
        """Pause the partitions that have enough in memory, resume those that have little."""
        patience = self._clock.monotonic() + _STALL_SECONDS
        while True:
            decision = self._backpressure.decide(self._consumer.assignment(), self._lanes.loads(), self._tracker.full())
            left = patience - self._clock.monotonic()
            if not (decision.stalled and decision.pause and left > 0) or self._ending.requested:
                break
            self._lanes.bell.wait(left)
        if decision.pause:
            self._consumer.pause(decision.pause)
        if decision.resume:
            self._consumer.resume(decision.resume)
        self._backpressure.applied(decision)

    def _commit(self, patience_seconds: float, partitions: Sequence[TopicPartition] | None = None) -> None:
        """Commit the gap-free prefix of what is done. What has no answer stays to be committed."""
        progress = self._tracker.committable()
        if partitions is not None:
            progress = {partition: at for partition, at in progress.items() if partition in partitions}
        if not progress:
            return
        self._hooks.tell("before_commit", {partition: at.next_offset for partition, at in progress.items()})
        fail_point("processor.before_commit")
        results = self._consumer.commit(progress, patience_seconds)
        stored = {partition: progress[partition] for partition, result in results.items() if result.committed}
        self._tracker.committed(stored)
        self._committed.update((partition, at.next_offset) for partition, at in stored.items())
        for error in {id(result.error): result.error for result in results.values() if result.error}.values():
            self._look_at_commit(error)
        self._hooks.tell("after_commit", {partition: result.error for partition, result in results.items()})

    def _look_at_commit(self, error: MessagingError) -> None:
        if isinstance(error, _ENDING):
            self._fail(error)
        elif not isinstance(error, StaleCommit):
            self.ignored_errors[type(error).__name__] += 1
            LOG.warning("a commit has to be repeated: %s", error)

    # A handler thread

    def _work(self, lane: Lane, task: Task) -> None:
        try:
            remains, rest_seconds = self._attempt(lane, task)
        except Abandoned:
            remains, rest_seconds = (task,), 0.0
        self._lanes.finished(lane, task, remains, rest_seconds)

    def _attempt(self, lane: Lane, task: Task) -> _Next:
        """One call of the handler and everything that follows from it."""
        if task.condemned is not None:
            return self._reject(lane, task, dict.fromkeys(range(len(task.part)), task.condemned))
        if lane.unclaimed is not None:
            task.part.start_offset, lane.unclaimed = lane.unclaimed, None
        attempt = task.attempts + 1
        self._hooks.tell("before_handle", task.part, attempt)
        call = self._caller.call(task.part, lambda: lane.closing or self._ending.requested)
        self._hooks.tell("after_handle", task.part, attempt, call.error)
        fail_point("processor.after_handle")
        done, failed, untried = task.split(call.handled, call.failed)
        first = self._complete(lane, done, call.outputs) if done else _Next()
        then = self._decide(lane, failed, call.error) if failed and call.error else _Next()
        after = (untried,) if untried else ()
        return _Next(first.tasks + then.tasks + after, max(first.rest_seconds, then.rest_seconds))

    def _decide(self, lane: Lane, task: Task, error: Exception) -> _Next:
        """What becomes of messages whose handler raised: again later, in halves, or to the dead letters."""
        if isinstance(error, RetryLater):
            return _Next((task,), self._later(task, error))
        if isinstance(error, Undecodable):
            return self._reject(lane, task, error.errors)
        if isinstance(error, Poison):
            indices = range(len(task.part)) if error.indices is None else error.indices
            if indices and all(0 <= index < len(task.part) for index in indices):
                task.failed(self._clock.time_ms())
                return self._reject(lane, task, {index: error.at(index) for index in indices})
        if isinstance(error, ReadFrom):
            self._detours.ask(lane, error.offset)
            raise Abandoned
        task.failed(self._clock.time_ms())
        if not task.last_chance and not self._retry.exhausted(task.tries):
            LOG.warning("handler failed on %s, attempt %d: %s", task, task.tries, type(error).__name__)
            return _Next((task,), self._retry.delay(task.tries, random.random()))
        if len(task.part) > 1:
            return _Next(task.halves())
        return self._reject(lane, task, {0: error})

    def _later(self, task: Task, instruction: RetryLater) -> float:
        task.waits += 1
        if instruction.after is not None:
            return instruction.after
        return self._retry.delay(task.waits, random.random())

    def _reject(self, lane: Lane, task: Task, errors: Mapping[int, Exception]) -> _Next:
        """Dead letters for the messages with errors, acknowledged before they count as done; the rest goes on."""
        if self._dead_letters is None:
            raise self._handler_error(task) from next(iter(errors.values()))
        if self._transactions is not None and len(errors) < len(task.part):
            return _Next(task.condemn(errors))  # offsets in a transaction must not skip: each piece has its own
        admitted, limit = self._dead_letters.admit(task, errors)
        if admitted:
            doomed = task.select(admitted)
            self._dead_letters.send(lane, doomed, [errors[index] for index in admitted])
            fail_point("processor.after_dead_letter")
            self._done(doomed)
        if limit is not None:
            raise limit
        if len(errors) == len(task.part):
            lane.unclaimed = task.part.start_offset
            return _Next()
        remaining = task.without(errors)
        remaining.counted = True
        return _Next((remaining,))

    def _complete(self, lane: Lane, task: Task, outputs: Mapping[str, Sequence[Record]]) -> _Next:
        """Have the outputs acknowledged, and only then count their input as done."""
        try:
            if self._outbox is not None:
                self._outbox.deliver(lane, task, outputs)
            elif outputs:
                raise MisuseError("a handler returned outputs, but the processor has no producer: give it one")
        except UndeliveredError as refused:
            return self._refused(lane, task, refused)
        if self._dead_letters is not None:
            self._dead_letters.passed(task)
        self._done(task)
        return _Next()

    def _refused(self, lane: Lane, task: Task, refused: UndeliveredError) -> _Next:
        """An output can never be delivered: find the message that it was made from, without trying again first."""
        error = next(delivery.error for delivery in refused.report.failed + refused.report.unknown if delivery.error)
        if self._transactions is not None:
            raise self._handler_error(task) from error
        task.failed(self._clock.time_ms())
        if len(task.part) > 1:
            return _Next(task.halves())
        return self._reject(lane, task, {0: error})

    def _done(self, task: Task) -> None:
        part = task.part
        if self._transactions is not None:
            self._committed[part.topic_partition] = part.next_offset
        elif task.contiguous:
            self._tracker.done_range(part.topic_partition, part.epoch, part.offsets[0], part.next_offset)
        else:
            for offset in part.offsets:
                self._tracker.done(part.topic_partition, part.epoch, offset)

    def _handler_error(self, task: Task) -> HandlerError:
        return HandlerError(
            f"the handler cannot take {task} (attempts: {task.attempts}), and nothing says what else to do with it: "
            "repair the handler or the input, or give the processor dead letters"
        )

    # Partitions that go, and the end

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        """Finish or abandon what is in flight and commit what is done, until ``deadline`` (monotonic)."""
        try:
            self._lanes.close(partitions)
            fail_point("processor.during_revoke")
            now = self._clock.monotonic()
            if not self._lanes.wait_idle(partitions, now + (deadline - now) * _HANDLERS_SHARE):
                LOG.warning("handlers still have messages of %d revoked partitions; those come again", len(partitions))
            self._commit(max(0.0, deadline - self._clock.monotonic()), partitions)
        finally:
            self._let_go(partitions)
        self._hooks.tell("after_revoke", partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop everything of these: somebody else may have them already."""
        self._let_go(partitions)
        self._hooks.tell("after_lost", partitions)

    def _let_go(self, partitions: Sequence[TopicPartition]) -> None:
        self._lanes.drop(partitions)
        self._tracker.forget(partitions)
        self._detours.forget(partitions)
        self._backpressure.forget(partitions)
        if self._dead_letters is not None:
            self._dead_letters.forget(partitions)

    def _fail(self, error: BaseException) -> None:
        self._ending.fail(error)
        self._lanes.halt()

    def _wind_down(self) -> StopReport:
        self._ending.request(None)
        self._lanes.halt()
        partitions = self._lanes.partitions()
        try:
            now, until = self._clock.monotonic(), self._ending.until
            self._lanes.wait_idle(partitions, now + (until - now) * _HANDLERS_SHARE)
            self._commit(max(0.0, until - self._clock.monotonic()))
            return self._report()
        finally:
            self._let_go(sorted(partitions))
            self._lanes.shut()
            self._hand_over.release()

    def _report(self) -> StopReport:
        return StopReport(
            committed=dict(self._committed),
            unconfirmed={partition: at.next_offset for partition, at in self._tracker.committable().items()},
            left=self._tracker.unfinished(),
            in_flight=self._lanes.in_flight(self._lanes.partitions()),
        )
