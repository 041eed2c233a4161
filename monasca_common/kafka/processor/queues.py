# SPDX-License-Identifier: Apache-2.0
"""Lanes: what was polled and waits for a handler, in lines of which each is worked off strictly in order.

A lane is one partition, or with ``order="key"`` one key of it. At most one thread works on a lane; a lane that rests
(after a failure) holds no thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from monasca_common.kafka.clock import Clock, Signal
from monasca_common.kafka.message import PartitionBatch, TopicPartition
from monasca_common.kafka.processor.task import Task

#: A message's key; its offset where it has none, because there is no order to keep; ``None`` for a whole partition.
Key: TypeAlias = bytes | int | None


class Lane:
    """One line. It is ``queued`` for a thread or ``busy`` with one, or neither.

    ``closing``: nothing more of it is handed out; ``dead``: what is still being handled is ignored.
    ``unclaimed``: where dead letters begin that no handler has accounted for yet.
    """

    __slots__ = ("busy", "closing", "dead", "epoch", "key", "partition", "queued", "resume_at", "tasks", "unclaimed")

    def __init__(self, partition: TopicPartition, key: Key, epoch: int) -> None:
        self.partition = partition
        self.key = key
        self.epoch = epoch
        self.tasks: deque[Task] = deque()
        self.queued = False
        self.busy = False
        self.closing = False
        self.dead = False
        self.resume_at: float | None = None
        self.unclaimed: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What a partition occupies in memory."""

    messages: int = 0
    bytes: int = 0


class Lanes:
    """All lanes of a processor. Thread-safe: the polling thread fills them, handler threads empty them.

    ``by_key``: each key of a partition has a lane of its own, for as long as something of it waits.
    ``batch_size``: what piles up in a lane goes to the handler together, up to so many messages, and waits for so many
    for ``fill_seconds`` at most.
    """

    def __init__(
        self, clock: Clock, *, by_key: bool = False, batch_size: int | None = None, fill_seconds: float = 0.0
    ) -> None:
        self._clock = clock
        self._by_key = by_key
        self._batch_size = 0 if batch_size is None or by_key else batch_size
        self._fill_seconds = fill_seconds
        self._lanes: dict[tuple[TopicPartition, Key], Lane] = {}
        self._ready: deque[Lane] = deque()
        self._resting: set[Lane] = set()  # those with `resume_at`
        self._changed = threading.Condition()
        self._halted = False
        self._shut = False
        self._messages: defaultdict[TopicPartition, int] = defaultdict(int)
        self._bytes: defaultdict[TopicPartition, int] = defaultdict(int)
        self.progress = Signal()  # set whenever a lane is finished with something

    @property
    def ordered(self) -> bool:
        """Whether a partition is one lane, so that what is queued last is done last."""
        return not self._by_key

    def add(self, part: PartitionBatch) -> None:
        """Queue what was polled from one partition; without messages, if `ordered`, the end of its log."""
        partition = part.topic_partition
        tasks = [(key, Task(piece, contiguous=not self._by_key)) for key, piece in self._divide(part)]
        due = self._clock.monotonic() + self._fill_seconds
        with self._changed:
            for key, task in tasks:
                task.due = due if len(part) else None
                lane = self._lanes.get((partition, key))
                if lane is None or lane.epoch != part.epoch:
                    lane = self._lanes[partition, key] = Lane(partition, key, part.epoch)
                lane.tasks.append(task)
                self._charge(partition, len(task.part), task.size)
                self._offer(lane)

    def next(self) -> tuple[Lane, Task] | None:
        """Wait for a task, and keep its lane from other threads until `finished`; ``None`` after `shut`."""
        with self._changed:
            while not self._ready and not self._shut:
                self._changed.wait()
            if self._shut:
                return None
            lane = self._ready.popleft()
            lane.queued, lane.busy = False, True
            return lane, self._gather(lane)

    def finished(self, lane: Lane, task: Task, remains: Iterable[Task], rest_seconds: float) -> None:
        """``task`` was tried; ``remains`` come in its place, after a rest."""
        with self._changed:
            remains = tuple(remains)
            lane.busy = False
            if not lane.dead:
                self._charge(lane.partition, -len(task.part), -task.size)
                lane.tasks.popleft()
                for other in reversed(remains):
                    self._charge(lane.partition, len(other.part), other.size)
                    lane.tasks.appendleft(other)
            if rest_seconds > 0 and remains:
                self._rest(lane, self._clock.monotonic() + rest_seconds)
            self._offer(lane)
            if self._by_key and not lane.tasks and self._lanes.get((lane.partition, lane.key)) is lane:
                del self._lanes[lane.partition, lane.key]  # or there would be one for each key that ever came
        self.progress.set()

    def wake(self, now: float | None = None) -> None:
        """Offer the lanes whose rest is over, by ``now`` (monotonic; ``None``: by the clock)."""
        now = self._clock.monotonic() if now is None else now
        with self._changed:
            for lane in [lane for lane in self._resting if lane.resume_at is None or lane.resume_at <= now]:
                self._rest(lane, None)
                self._offer(lane)

    def next_wake(self) -> float | None:
        """When (monotonic) the first resting lane is due."""
        with self._changed:
            return min((lane.resume_at for lane in self._resting if lane.resume_at is not None), default=None)

    def loads(self) -> dict[TopicPartition, Load]:
        """What each partition occupies, without those that occupy nothing."""
        with self._changed:
            return {partition: Load(count, self._bytes[partition]) for partition, count in self._messages.items()}

    def halt(self) -> None:
        """Hand out nothing more, ever; what is being handled goes on."""
        with self._changed:
            self._halted = True
            self._unready(lambda lane: True)
        self.progress.set()

    def partitions(self) -> set[TopicPartition]:
        with self._changed:
            return {lane.partition for lane in self._lanes.values()}

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing more of these; what is being handled goes on."""
        with self._changed:
            for lane in self._of(partitions):
                lane.closing = True
            self._unready(lambda lane: lane.closing)

    def wait_idle(self, partitions: Collection[TopicPartition], until: float) -> bool:
        """Wait for the handlers that have messages of these, until a moment (monotonic); whether all are through."""
        while self.in_flight(partitions):
            remaining = until - self._clock.monotonic()
            if remaining <= 0:
                return False
            self.progress.wait(self._clock, remaining)
        return True

    def in_flight(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Messages of these partitions that a handler has right now."""
        counts: dict[TopicPartition, int] = defaultdict(int)
        with self._changed:
            for lane in self._of(partitions):
                if lane.busy:
                    counts[lane.partition] += len(lane.tasks[0].part)
        return dict(counts)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these; whatever handlers still make of them is ignored."""
        self.close(partitions)
        with self._changed:
            for lane in self._of(partitions):
                lane.dead = True
                self._resting.discard(lane)
            self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.dead}
            for partition in partitions:
                self._messages.pop(partition, None)
                self._bytes.pop(partition, None)

    def shut(self) -> None:
        """Let the threads that wait in `next` go."""
        with self._changed:
            self._shut = True
            self._changed.notify_all()

    def _gather(self, lane: Lane) -> Task:
        """The first task, together with what came behind it meanwhile: a handler pays for a call, not for a poll."""
        tasks = [lane.tasks.popleft()]
        if tasks[0].due is not None:
            room = self._batch_size - len(tasks[0].part)
            while lane.tasks and lane.tasks[0].due is not None and len(lane.tasks[0].part) <= room:
                tasks.append(lane.tasks.popleft())
                room -= len(tasks[-1].part)
        task = Task.joined(tasks)
        task.due = None
        lane.tasks.appendleft(task)
        return task

    def _offer(self, lane: Lane) -> None:
        self._let_fill(lane)
        withheld = self._halted or lane.closing or lane.dead or lane.resume_at is not None
        if lane.tasks and not (withheld or lane.queued or lane.busy):
            lane.queued = True
            self._ready.append(lane)
            self._changed.notify()

    def _let_fill(self, lane: Lane) -> None:
        """Let a lane wait whose first messages are not a full batch yet, while they may wait for more."""
        due = lane.tasks[0].due if lane.tasks else None
        if due is None or self._fill_seconds <= 0:
            return
        full = self._messages.get(lane.partition, 0) >= self._batch_size
        self._rest(lane, None if full or due <= self._clock.monotonic() else due)

    def _rest(self, lane: Lane, until: float | None) -> None:
        lane.resume_at = until
        if until is None:
            self._resting.discard(lane)
        else:
            self._resting.add(lane)

    def _unready(self, condition: Callable[[Lane], bool]) -> None:
        for lane in filter(condition, self._ready):
            lane.queued = False
        self._ready = deque(lane for lane in self._ready if lane.queued)

    def _of(self, partitions: Collection[TopicPartition]) -> Iterator[Lane]:
        return (lane for lane in self._lanes.values() if lane.partition in partitions)

    def _charge(self, partition: TopicPartition, messages: int, size: int) -> None:
        self._messages[partition] += messages
        self._bytes[partition] += size
        if not self._messages[partition]:
            del self._messages[partition], self._bytes[partition]

    def _divide(self, part: PartitionBatch) -> Iterable[tuple[Key, PartitionBatch]]:
        if not self._by_key:
            return ((None, part),)
        pieces: defaultdict[Key, list[int]] = defaultdict(list)
        for index, (key, offset) in enumerate(zip(part.keys, part.offsets, strict=True)):
            pieces[offset if key is None else key].append(index)
        return ((key, part.select(indices)) for key, indices in pieces.items())
