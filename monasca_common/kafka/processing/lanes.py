# SPDX-License-Identifier: Apache-2.0
"""Lanes: what was polled and waits for a handler, in lines of which each is worked off strictly in order.

A lane is one partition, or with ``order="key"`` one of several shares of its keys. At most one thread works
on a lane; a lane that rests (after a failure) holds no thread.
"""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import PartitionBatch, TopicPartition

# What a message occupies beside its value: the client's own structures, and Python's object for it.
_OVERHEAD_BYTES = 500


class Task:
    """Messages that go to the handler together, and what has happened to them so far."""

    __slots__ = (
        "attempts",
        "condemned",
        "contiguous",
        "counted",
        "due",
        "first_failed_ms",
        "last_chance",
        "part",
        "size",
        "tries",
        "waits",
    )

    def __init__(self, part: PartitionBatch, parent: Task | None = None, *, contiguous: bool = True) -> None:
        self.part = part
        self.size = sum(map(len, filter(None, part.values))) + len(part) * _OVERHEAD_BYTES
        self.contiguous: bool = contiguous  # no message was left out in between
        self.attempts: int = 0  # failed calls of the handler that had these messages
        self.first_failed_ms: int | None = None
        self.counted: bool = False  # already among the messages of the dead letters' ratio
        if parent is not None:
            self.contiguous = contiguous and parent.contiguous
            self.attempts, self.first_failed_ms = parent.attempts, parent.first_failed_ms
            self.counted = parent.counted
        self.tries = 0  # failed calls since these messages are together
        self.waits = 0  # times that a dependency was away
        self.last_chance = False  # part of a larger batch that failed often enough: one call, then halves again
        self.condemned: Exception | None = None  # not for the handler any more, but for the dead letters
        self.due: float | None = None  # until when it may wait for more; None once it is on its way

    def __str__(self) -> str:
        topic, partition = self.part.topic_partition
        return f"{topic}/{partition} offsets {self.part.offsets[0]} to {self.part.offsets[-1]}"

    def failed(self, now_ms: int) -> None:
        """The handler had these messages and raised."""
        self.attempts += 1
        self.tries += 1
        if self.first_failed_ms is None:
            self.first_failed_ms = now_ms

    @classmethod
    def joined(cls, tasks: Sequence[Task]) -> Task:
        """Neighbours that no handler has seen yet, as one."""
        return tasks[0] if len(tasks) == 1 else cls(PartitionBatch.joined([task.part for task in tasks]))

    def select(self, indices: Sequence[int]) -> Task:
        """A task of some of the messages, with the same past."""
        return Task(self.part.select(indices), self, contiguous=False)

    def without(self, indices: Container[int]) -> Task:
        """A task of the same range, with the same past, without some of the messages."""
        return Task(self.part.without(indices), self, contiguous=False)

    def slice(self, start: int, stop: int) -> Task | None:
        """A task of neighbours; the task itself if that is all of them, and ``None`` if there are none."""
        if stop - start == len(self.part):
            return self
        return Task(self.part.slice(start, stop), self) if stop > start else None

    def split(self, handled: int, failed: int) -> tuple[Task | None, Task | None, Task | None]:
        """The first ``handled`` messages, the ``failed`` ones after them, and those that come after both."""
        middle = handled + failed
        return self.slice(0, handled), self.slice(handled, middle), self.slice(middle, len(self.part))

    def halves(self) -> tuple[Task, Task]:
        middle = len(self.part) // 2
        first, second = Task(self.part.slice(0, middle), self), Task(self.part.slice(middle, len(self.part)), self)
        first.last_chance, second.last_chance = len(first.part) > 1, len(second.part) > 1
        return first, second

    def condemn(self, errors: Mapping[int, Exception]) -> tuple[Task, ...]:
        """In order: each message with an error alone, condemned for it, and what lies in between."""
        tasks = []
        following = 0
        for index in sorted(errors):
            tasks.append(self.slice(following, index))
            doomed = Task(self.part.slice(index, index + 1), self)
            doomed.condemned = errors[index]
            tasks.append(doomed)
            following = index + 1
        tasks.append(self.slice(following, len(self.part)))
        return tuple(task for task in tasks if task is not None)


class Lane:
    """One line. It is ``queued`` for a thread or ``busy`` with one, or neither.

    ``closing``: nothing more of it is handed out; ``dead``: what is still being handled is ignored.
    ``unclaimed``: where dead letters begin that no handler has accounted for yet.
    """

    __slots__ = ("busy", "closing", "dead", "epoch", "partition", "queued", "resume_at", "tasks", "unclaimed")

    def __init__(self, partition: TopicPartition, epoch: int) -> None:
        self.partition = partition
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


class Bell:
    """Wakes one waiting thread; time is a `Clock`'s."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:  # somebody else rang at the same moment
                return

    def wait(self, seconds: float) -> bool:
        """Whether it rang, now or since the last wait."""
        return self._clock.wait(self._lock, seconds)


class Lanes:
    """All lanes of a processor. Thread-safe: the polling thread fills them, handler threads empty them.

    ``shares``: how many lanes the keys of one partition are spread over; 1 keeps the order of the partition.
    ``batch_size``: what piles up in a lane goes to the handler together, up to so many messages, and waits for so many
    for ``fill_seconds`` at most.
    """

    def __init__(
        self, clock: Clock, *, shares: int = 1, batch_size: int | None = None, fill_seconds: float = 0.0
    ) -> None:
        self._clock = clock
        self._shares = shares
        self._batch_size = 0 if batch_size is None or shares > 1 else batch_size
        self._fill_seconds = fill_seconds
        self._lanes: dict[tuple[TopicPartition, int], Lane] = {}
        self._ready: deque[Lane] = deque()
        self._changed = threading.Condition()
        self._halted = False
        self._shut = False
        self._messages: defaultdict[TopicPartition, int] = defaultdict(int)
        self._bytes: defaultdict[TopicPartition, int] = defaultdict(int)
        self.bell = Bell(clock)  # rings whenever a lane is finished with something

    def add(self, part: PartitionBatch) -> None:
        """Queue what was polled from one partition."""
        partition = part.topic_partition
        tasks = [(share, Task(piece, contiguous=self._shares == 1)) for share, piece in self._divide(part)]
        due = self._clock.monotonic() + self._fill_seconds
        with self._changed:
            for share, task in tasks:
                task.due = due
                lane = self._lanes.get((partition, share))
                if lane is None or lane.epoch != part.epoch:
                    lane = self._lanes[partition, share] = Lane(partition, part.epoch)
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
                lane.resume_at = self._clock.monotonic() + rest_seconds
            self._offer(lane)
        self.bell.ring()

    def wake(self) -> None:
        """Offer the lanes whose rest is over."""
        now = self._clock.monotonic()
        with self._changed:
            for lane in self._lanes.values():
                if lane.resume_at is not None and lane.resume_at <= now:
                    lane.resume_at = None
                    self._offer(lane)

    def next_wake(self) -> float | None:
        """When (monotonic) the first resting lane is due."""
        with self._changed:
            return min((lane.resume_at for lane in self._lanes.values() if lane.resume_at is not None), default=None)

    def loads(self) -> dict[TopicPartition, Load]:
        with self._changed:
            return {partition: Load(count, self._bytes[partition]) for partition, count in self._messages.items()}

    def halt(self) -> None:
        """Hand out nothing more, ever; what is being handled goes on."""
        with self._changed:
            self._halted = True
            self._unready(lambda lane: True)
        self.bell.ring()

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
            self.bell.wait(remaining)
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
        """Let a lane rest whose first messages are no full batch yet, and may still wait to become one."""
        due = lane.tasks[0].due if lane.tasks else None
        if due is None or self._fill_seconds <= 0:
            return
        full = self._messages[lane.partition] >= self._batch_size
        lane.resume_at = None if full or due <= self._clock.monotonic() else due

    def _unready(self, condition: Callable[[Lane], bool]) -> None:
        for lane in filter(condition, self._ready):
            lane.queued = False
        self._ready = deque(lane for lane in self._ready if lane.queued)

    def _of(self, partitions: Collection[TopicPartition]) -> Iterator[Lane]:
        return (lane for lane in self._lanes.values() if lane.partition in partitions)

    def _charge(self, partition: TopicPartition, messages: int, size: int) -> None:
        self._messages[partition] += messages
        self._bytes[partition] += size

    def _divide(self, part: PartitionBatch) -> Iterable[tuple[int, PartitionBatch]]:
        if self._shares == 1:
            return ((0, part),)
        pieces: defaultdict[int, list[int]] = defaultdict(list)
        for index, (key, offset) in enumerate(zip(part.keys, part.offsets, strict=True)):
            # Without a key there is no order to keep.
            pieces[(offset if key is None else zlib.crc32(key)) % self._shares].append(index)
        return ((share, part.select(indices)) for share, indices in pieces.items())
