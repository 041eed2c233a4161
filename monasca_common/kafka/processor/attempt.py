# SPDX-License-Identifier: Apache-2.0
"""Runs a task on a handler thread: calls the handler once, then completes all remaining steps.

A task is done only when its outputs, or its dead letters, are acknowledged.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import HandlerError, MisuseError, Poison, ReadFrom, RetryLater, UndeliveredError
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.log_limit import LogLimit
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import DeadLetterPublisher
from monasca_common.kafka.processor.handler_call import Call, Caller, Undecodable
from monasca_common.kafka.processor.hooks import Hooks
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.publishing import Abandoned, OutputPublisher
from monasca_common.kafka.processor.queues import Lane, Lanes, Rewinds, Task
from monasca_common.kafka.processor.retry import RetryPolicy
from monasca_common.kafka.processor.shutdown import Shutdown

LOG = logging.getLogger(__name__)

Accounted = Callable[[TopicPartition, int, int], None]  # see `Processor`


class NextTasks(NamedTuple):
    """The remaining tasks, in order, and the delay of their lane before the next attempt."""

    tasks: tuple[Task, ...] = ()
    rest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Attempts:
    """Runs the attempts of one processor's handler threads. Thread-safe."""

    caller: Caller
    retry: RetryPolicy
    clock: Clock
    lanes: Lanes
    tracker: OffsetTracker
    rewinds: Rewinds
    hooks: Hooks
    publisher: OutputPublisher | None
    dead_letters: DeadLetterPublisher | None
    shutdown: Shutdown
    accounted: Accounted | None
    log_limit: LogLimit
    ignored: Callable[[str, Exception], None]  # counts and logs a temporary error
    failed: Callable[[BaseException], None]  # stops the lanes
    transactional: bool

    def run(self) -> None:
        """Attempt tasks of the lanes until the lanes are shut; this is the main function of a handler thread. Pass
        exceptions that no attempt handles, including KeyboardInterrupt, to ``failed``."""
        while (taken := self.lanes.next()) is not None:
            lane, task = taken
            then = NextTasks((task,))
            try:
                then = self.attempt(lane, task)
            except Abandoned:
                pass
            except BaseException as error:
                self.failed(error)
            self.lanes.finished(lane, task, then.tasks, then.rest_seconds)
            del taken, lane, task, then  # free the messages while waiting for the next task

    def attempt(self, lane: Lane, task: Task) -> NextTasks:
        """Call the handler once, and then `conclude`. A range without messages needs no call."""
        if not len(task.part):
            return self._pass_range(lane, task)
        self.begin(lane, task)
        return self.conclude(lane, task, self.caller.call(task.part, lambda: lane.closing or self.shutdown.requested))

    def begin(self, lane: Lane, task: Task) -> None:
        if lane.unclaimed is not None:
            task.part.start_offset, lane.unclaimed = lane.unclaimed, None
        self.hooks.call("before_handle", task.part, task.attempts + 1)

    def conclude(self, lane: Lane, task: Task, call: Call) -> NextTasks:
        """Complete, retry or reject the messages of a call that has returned."""
        self.hooks.call("after_handle", task.part, task.attempts + 1, call.error)
        fail_point("processor.after_handle")
        done, failed, untried = task.split(call.handled, call.failed)
        first = self._complete(lane, done, call.outputs) if done else NextTasks()
        if first.tasks:
            # Outputs were refused: later messages, including rejected messages, wait until these outputs are done.
            after = task.slice(call.handled, len(task.part))
            return first if after is None else NextTasks((*first.tasks, after), first.rest_seconds)
        then = self._decide(lane, failed, call.error) if failed and call.error else NextTasks()
        return NextTasks((*then.tasks, untried) if untried else then.tasks, then.rest_seconds)

    def _decide(self, lane: Lane, task: Task, error: Exception) -> NextTasks:
        """Decide how to continue with messages whose handler raised: retry later, retry in halves, or reject."""
        if isinstance(error, RetryLater):
            return NextTasks((task,), self._later(task, error))
        if isinstance(error, Undecodable):
            return self._reject(lane, task, error.errors)
        if isinstance(error, Poison):
            indices = range(len(task.part)) if error.indices is None else error.indices
            if indices and all(0 <= index < len(task.part) for index in indices):
                task.failed(self.clock.time_ms())
                return self._reject(lane, task, {index: error.at(index) for index in indices})
        if isinstance(error, ReadFrom):
            self.rewinds.request(lane, error.offset)
            raise Abandoned
        task.failed(self.clock.time_ms())
        if not task.last_chance and not self.retry.exhausted(task.tries):
            more = self.log_limit.admit("handler", type(error).__name__)
            if more is not None:
                LOG.warning("handler failed on %s, attempt %d: %s%s", task, task.tries, type(error).__name__, more)
            return NextTasks((task,), self.retry.delay(task.tries, random.random()))
        if len(task.part) > 1:
            return NextTasks(task.halves())
        return self._reject(lane, task, {0: error})

    def _later(self, task: Task, instruction: RetryLater) -> float:
        task.waits += 1
        cause = "" if instruction.__cause__ is None else f" ({type(instruction.__cause__).__name__})"
        self.ignored(f"messages of {task.part.topic_partition.topic} wait for their next attempt{cause}", instruction)
        if instruction.after is not None:
            return instruction.after
        return self.retry.delay(task.waits, random.random())

    def _reject(self, lane: Lane, task: Task, errors: Mapping[int, Exception]) -> NextTasks:
        """Publish dead letters for the messages with errors; once these are acknowledged, the messages are done.
        Messages without errors remain."""
        if self.dead_letters is None:
            raise self._handler_error(task) from next(iter(errors.values()))
        if self.transactional and len(errors) < len(task.part):
            return NextTasks(task.halves())  # a transaction must not skip offsets
        counted = bisect_left(task.part.offsets, task.counted)
        admitted, limit = self.dead_letters.count.admit_some(task.part.topic_partition, errors, counted)
        if admitted:
            rejected = task.select(admitted)
            self.dead_letters.send(lane, rejected, [errors[index] for index in admitted])
            fail_point("processor.after_dead_letter")
            if self.accounted is None:
                self._done(rejected)
        if limit is not None:
            raise limit
        remaining = task.without(errors)
        remaining.counted = max(task.counted, task.part.offsets[max(errors)] + 1)
        if len(remaining.part):
            return NextTasks((remaining,))
        if self.accounted is not None:
            return self._pass_range(lane, remaining)
        lane.unclaimed = task.part.start_offset
        return NextTasks()

    def _pass_range(self, lane: Lane, task: Task) -> NextTasks:
        """Finish a range without messages: its messages are acknowledged dead letters, or it ends at the end of the
        log. Move the position that is stored elsewhere, before the range counts as done; while the store is
        unavailable, only this is repeated. Raises `HandlerError` for errors that a retry cannot resolve."""
        start, end = task.part.start_offset, task.part.next_offset
        if self.transactional and self.publisher is not None:
            self.publisher.deliver(lane, task, {})
            return NextTasks()
        if self.accounted is not None:
            try:
                self.accounted(lane.partition, start, end)
            except RetryLater as unavailable:
                return NextTasks((task,), self._later(task, unavailable))
            except ReadFrom as missing:
                self.rewinds.request(lane, missing.offset)
                raise Abandoned from missing
            except Exception as error:
                topic, partition = lane.partition
                raise HandlerError(
                    f"the position of {topic}/{partition} cannot be moved from {start} to {end}: repair its store"
                ) from error
            fail_point("processor.after_accounting")
        self._done(task)
        return NextTasks()

    def _complete(self, lane: Lane, task: Task, outputs: Mapping[str, Sequence[Record]]) -> NextTasks:
        """Publish the outputs; the input is done only when the outputs are acknowledged."""
        try:
            if outputs or self.transactional:
                if self.publisher is None:
                    raise MisuseError(
                        "a handler returned outputs, but the processor has no producer: pass producer= to the processor"
                    )
                self.publisher.deliver(lane, task, outputs)
                if outputs:
                    fail_point("processor.after_outputs")
        except UndeliveredError as refused:
            return self._refused(lane, task, refused)
        if self.dead_letters is not None:
            counted = bisect_left(task.part.offsets, task.counted)
            self.dead_letters.count.passed(task.part.topic_partition, len(task.part) - counted)
        self._done(task)
        return NextTasks()

    def _refused(self, lane: Lane, task: Task, refused: UndeliveredError) -> NextTasks:
        """Find the input of an undeliverable output by splitting the task into halves, without retries."""
        error = next(delivery.error for delivery in refused.report.failed + refused.report.unknown if delivery.error)
        if self.transactional:
            raise self._handler_error(task) from error
        task.failed(self.clock.time_ms())
        if len(task.part) > 1:
            return NextTasks(task.halves())
        return self._reject(lane, task, {0: error})

    def _done(self, task: Task) -> None:
        part = task.part
        if self.transactional:
            return  # the transaction has marked the task as done
        if task.contiguous:
            self.tracker.done_range(part.topic_partition, part.epoch, part.start_offset, part.next_offset)
        else:
            for offset in part.offsets:
                self.tracker.done_range(part.topic_partition, part.epoch, offset, offset + 1)

    def _handler_error(self, task: Task) -> HandlerError:
        return HandlerError(
            f"the handler failed on {task} (attempts: {task.attempts}), and its messages cannot be dead-lettered: "
            "repair the handler or the input, or configure dead letters for the processor"
        )
