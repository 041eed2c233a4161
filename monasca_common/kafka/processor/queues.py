# SPDX-License-Identifier: Apache-2.0
"""Queues between the polling thread and the handlers: tasks, lanes that keep their order, back-pressure and rewinds.

A `Task` has the messages of one handler call. A lane is one partition or, with ``order="key"``, one of its keys; its
tasks are handled strictly in order. At most one thread works on a lane, and none while it waits after a failure.
`Backpressure` pauses partitions only when the bounded buffer is full, because a pause discards messages that the client
has prefetched. `Rewinds` empties lanes whose partition will be read again from an earlier offset.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import InitVar, dataclass, field
from typing import TypeAlias

from monasca_common.kafka.clock import Clock, Signal
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.message import PartitionBatch, TopicPartition
from monasca_common.kafka.processor.offset_tracker import OffsetTracker

# The memory of a message in addition to its value: structures of the client, and the Python object.
_OVERHEAD_BYTES = 500
# The memory of a task in addition to its messages. It matters if each key has a lane and each message a task.
_TASK_BYTES = 1_500
_REWIND_REST_SECONDS = 0.2  # wait before a rewind, so that a persistent cause does not make the loop spin

_RESUME_BELOW = 0.5  # fraction of a partition's share; prevents rapid pausing and resuming

#: A message's key, or its offset if it has no key, because its order is then irrelevant; ``None`` for a whole
#: partition.
Key: TypeAlias = bytes | int | None


@dataclass(slots=True, eq=False)
class Task:
    """Messages for one call of the handler, and their history."""

    part: PartitionBatch
    parent: InitVar[Task | None] = None
    contiguous: bool = field(default=True, kw_only=True)  # whether it has its whole range except dead letters
    size: int = field(init=False)
    attempts: int = field(init=False, default=0)  # failed calls of the handler that included these messages
    first_failed_ms: int | None = field(init=False, default=None)
    counted: int = field(init=False, default=0)  # the limits of dead letters have counted messages before this offset
    tries: int = field(init=False, default=0)  # failed calls with exactly these messages
    waits: int = field(init=False, default=0)  # how many times a dependency was unavailable
    # Part of a larger batch that exhausted its attempts: it gets one more attempt, and is then halved again.
    last_chance: bool = field(init=False, default=False)
    due: float | None = field(init=False, default=None)  # the end of its wait for more messages; None once it is taken

    def __post_init__(self, parent: Task | None) -> None:
        self.size = sum(map(len, filter(None, self.part.values))) + len(self.part) * _OVERHEAD_BYTES + _TASK_BYTES
        if parent is not None:
            self.contiguous = self.contiguous and parent.contiguous
            self.attempts, self.first_failed_ms = parent.attempts, parent.first_failed_ms
            self.counted = parent.counted

    def __str__(self) -> str:
        topic, partition = self.part.topic_partition
        return f"{topic}/{partition} offsets {self.part.start_offset} to {self.part.next_offset - 1}"

    def failed(self, now_ms: int) -> None:
        """Record a failed call of the handler with these messages."""
        self.attempts += 1
        self.tries += 1
        if self.first_failed_ms is None:
            self.first_failed_ms = now_ms

    @classmethod
    def joined(cls, tasks: Sequence[Task]) -> Task:
        """Join adjacent tasks that no handler has received yet."""
        if len(tasks) == 1:
            return tasks[0]
        return cls(PartitionBatch.joined([task.part for task in tasks]), contiguous=tasks[0].contiguous)

    def select(self, indices: Sequence[int]) -> Task:
        """Return a task with some of the messages and the same history."""
        return Task(self.part.select(indices), self, contiguous=False)

    def without(self, indices: Container[int]) -> Task:
        """Return a task of the same range and history, without some of the messages."""
        return Task(self.part.without(indices), self)

    def slice(self, start: int, stop: int) -> Task | None:
        """Return a task with consecutive messages: this task if it is the whole range, or ``None`` if it is empty."""
        if stop - start == len(self.part):
            return self
        return Task(self.part.slice(start, stop), self) if stop > start else None

    def split(self, handled: int, failed: int) -> tuple[Task | None, Task | None, Task | None]:
        """Return three tasks: the first ``handled`` messages, the next ``failed`` messages, and the remaining
        messages."""
        middle = handled + failed
        return self.slice(0, handled), self.slice(handled, middle), self.slice(middle, len(self.part))

    def halves(self) -> tuple[Task, Task]:
        middle = len(self.part) // 2
        first, second = Task(self.part.slice(0, middle), self), Task(self.part.slice(middle, len(self.part)), self)
        first.last_chance, second.last_chance = len(first.part) > 1, len(second.part) > 1
        return first, second


@dataclass(slots=True, eq=False)
class Lane:
    """A queue of tasks. A lane is ``queued`` for a thread, ``busy`` while a thread works on it, or neither.

    ``closing``: no further task is taken; ``dead``: results of the current call are ignored.
    ``unclaimed``: the first offset of dead letters that the range of the next task will include.
    """

    partition: TopicPartition
    key: Key
    epoch: int
    tasks: deque[Task] = field(default_factory=deque)
    queued: bool = False
    busy: bool = False
    closing: bool = False
    dead: bool = False
    resume_at: float | None = None
    unclaimed: int | None = None
    messages: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The memory that a partition uses."""

    messages: int = 0
    bytes: int = 0


class Lanes:
    """All lanes of a processor. Thread-safe: the polling thread fills them, handler threads empty them.

    ``by_key``: each key of a partition has its own lane while it has messages.
    ``batch_size``: up to this number of messages that queue in a lane go to the handler together. They wait up to
    ``fill_seconds`` to reach this number.
    """

    def __init__(
        self, clock: Clock, *, by_key: bool = False, batch_size: int | None = None, fill_seconds: float = 0.0
    ) -> None:
        self._clock = clock
        self._by_key = by_key
        self._batch_size = batch_size or 0
        self._fill_seconds = fill_seconds
        self._lanes: dict[tuple[TopicPartition, Key], Lane] = {}
        self._ready: deque[Lane] = deque()
        self._calls = 0  # lanes that `next` returned and that are not `finished`
        self._resting: set[Lane] = set()  # lanes with `resume_at`
        self._changed = threading.Condition()
        self._halted = False
        self._shut = False
        self._loads: dict[TopicPartition, Load] = {}
        self.progress = Signal()  # set when a task of a lane is finished

    @property
    def ordered(self) -> bool:
        """Whether a partition is one lane, so that tasks finish in the order in which they were queued."""
        return not self._by_key

    def add(self, part: PartitionBatch) -> None:
        """Queue messages polled from one partition, or if `ordered`, a part without messages at the end of its log."""
        partition = part.topic_partition
        tasks = [(key, Task(piece, contiguous=not self._by_key)) for key, piece in self._divide(part)]
        due = self._clock.monotonic() + self._fill_seconds
        with self._changed:
            for key, task in tasks:
                if len(part) and not isinstance(key, int):  # a lane for an offset has only one task
                    task.due = due
                lane = self._lanes.get((partition, key))
                if lane is None or lane.epoch != part.epoch:
                    lane = self._lanes[partition, key] = Lane(partition, key, part.epoch)
                lane.tasks.append(task)
                self._charge(lane, len(task.part), task.size)
                self._offer(lane)

    def next(self) -> tuple[Lane, Task] | None:
        """Wait for a task, and reserve its lane for this thread until `finished`; return ``None`` after `shut`."""
        with self._changed:
            while not self._ready and not self._shut:
                self._changed.wait()
            if self._shut:
                return None
            lane = self._ready.popleft()
            lane.queued, lane.busy = False, True
            self._calls += 1
            return lane, self._gather(lane)

    def demand(self) -> int:
        """Return the number of threads needed for the tasks that are being handled or can be handled now."""
        with self._changed:
            return len(self._ready) + self._calls

    def finished(self, lane: Lane, task: Task, remains: Sequence[Task], rest_seconds: float) -> None:
        """Replace the attempted ``task`` with ``remains``, the tasks that are due after ``rest_seconds``."""
        with self._changed:
            lane.busy = False
            self._calls -= 1
            if not lane.dead:
                self._charge(lane, -len(task.part), -task.size)
                lane.tasks.popleft()
                for other in reversed(remains):
                    self._charge(lane, len(other.part), other.size)
                    lane.tasks.appendleft(other)
                if rest_seconds > 0 and remains:
                    self._rest(lane, self._clock.monotonic() + rest_seconds)
            self._offer(lane)
            if self._by_key and not lane.tasks and self._lanes.get((lane.partition, lane.key)) is lane:
                del self._lanes[lane.partition, lane.key]  # otherwise, the lanes of all keys would accumulate
        self.progress.set()

    def wake(self, now: float | None = None) -> None:
        """Queue the lanes whose wait is over at ``now`` (monotonic; default: the current time)."""
        now = self._clock.monotonic() if now is None else now
        with self._changed:
            for lane in [lane for lane in self._resting if lane.resume_at is None or lane.resume_at <= now]:
                self._rest(lane, None)
                self._offer(lane)

    def next_wake(self) -> float | None:
        """Return the time (monotonic) at which the first waiting lane is due, or ``None`` if no lane waits."""
        with self._changed:
            return min((lane.resume_at for lane in self._resting if lane.resume_at is not None), default=None)

    def loads(self) -> dict[TopicPartition, Load]:
        """Return the memory that each partition uses, except partitions that use none."""
        with self._changed:
            return dict(self._loads)

    def halt(self) -> None:
        """Hand out no more tasks. Current calls continue."""
        with self._changed:
            self._halted = True
            self._unready(lambda lane: True)
        self.progress.set()

    def partitions(self) -> set[TopicPartition]:
        with self._changed:
            return {lane.partition for lane in self._lanes.values()}

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no more tasks from these partitions. Current calls continue."""
        with self._changed:
            for lane in self._of(partitions):
                lane.closing = True
            self._unready(lambda lane: lane.closing)

    def wait_idle(self, partitions: Collection[TopicPartition], until: float) -> bool:
        """Wait for current calls with messages of these partitions, until ``until`` (monotonic). Return whether all
        calls have ended."""
        while self.in_flight(partitions):
            remaining = until - self._clock.monotonic()
            if remaining <= 0:
                return False
            self.progress.wait(self._clock, remaining)
        return True

    def in_flight(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the number of messages of each partition in current calls."""
        counts: dict[TopicPartition, int] = defaultdict(int)
        with self._changed:
            for lane in self._of(partitions):
                if lane.busy:
                    counts[lane.partition] += len(lane.tasks[0].part)
        return dict(counts)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the tasks of these partitions and ignore the results of current calls."""
        self.close(partitions)
        with self._changed:
            for lane in self._of(partitions):
                lane.dead = True
                self._resting.discard(lane)
            self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.dead}
            for partition in partitions:
                self._loads.pop(partition, None)

    def shut(self) -> None:
        """Release the threads that wait in `next`."""
        with self._changed:
            self._shut = True
            self._changed.notify_all()

    def _gather(self, lane: Lane) -> Task:
        """Join the first task with later tasks, because each handler call has a cost."""
        tasks = [lane.tasks.popleft()]
        if tasks[0].due is not None:
            room = self._batch_size - len(tasks[0].part)
            while lane.tasks and lane.tasks[0].due is not None and len(lane.tasks[0].part) <= room:
                tasks.append(lane.tasks.popleft())
                room -= len(tasks[-1].part)
                self._charge(lane, 0, -_TASK_BYTES)
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
        """Delay a lane while its first messages can still grow to a full batch."""
        due = lane.tasks[0].due if lane.tasks else None
        if due is None or self._fill_seconds <= 0:
            return
        full = lane.messages >= self._batch_size
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

    def _charge(self, lane: Lane, messages: int, size: int) -> None:
        lane.messages += messages
        load = self._loads.pop(lane.partition, Load())
        if load.messages + messages:
            self._loads[lane.partition] = Load(load.messages + messages, load.bytes + size)

    def _divide(self, part: PartitionBatch) -> Iterable[tuple[Key, PartitionBatch]]:
        if not self._by_key:
            return ((None, part),)
        pieces: defaultdict[Key, list[int]] = defaultdict(list)
        for index, (key, offset) in enumerate(zip(part.keys, part.offsets, strict=True)):
            pieces[offset if key is None else key].append(index)
        return ((key, part.select(indices)) for key, indices in pieces.items())


class Backpressure:
    """Half of ``max_messages`` and ``max_bytes`` is available to any partition; the other half is shared equally.

    Once the first half is used, a partition over its share is paused until it is below half of its share, so that a
    partition with a hanging handler does not use the room of other partitions. This class stores the set of paused
    partitions and calls no consumer.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._half = Load(max_messages // 2, max_bytes // 2)
        self.paused: frozenset[TopicPartition] = frozenset()  # set once the consumer has paused them

    def is_full(self, loads: Mapping[TopicPartition, Load]) -> bool:
        """Return whether the first half is used."""
        total = Load(sum(load.messages for load in loads.values()), sum(load.bytes for load in loads.values()))
        return self._over(total, 1.0)

    def wanted(
        self,
        assigned: Set[TopicPartition],
        loads: Mapping[TopicPartition, Load],
        blocked: Collection[TopicPartition] = (),
    ) -> frozenset[TopicPartition]:
        """Return the partitions to pause. ``blocked``: partitions to pause at any load."""
        is_full = self.is_full(loads)

        def over(partition: TopicPartition, share: float) -> bool:
            return self._over(loads.get(partition, Load()), share / len(assigned))

        # Only these partitions can change; there may be ten thousand assigned partitions.
        concerned = self.paused.union(blocked, loads if is_full else ())
        return frozenset(
            partition
            for partition in concerned & assigned
            if partition in blocked
            or (partition in self.paused and over(partition, _RESUME_BELOW))
            or (is_full and over(partition, 1.0))
        )

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that were revoked or lost; if they are assigned again, they are not paused."""
        self.paused -= frozenset(partitions)

    def _over(self, load: Load, share: float) -> bool:
        return load.messages >= max(1.0, self._half.messages * share) or load.bytes >= self._half.bytes * share


class Rewinds:
    """Handler threads `request` a rewind. The polling thread, the only one that may seek, calls `apply`."""

    def __init__(self, consumer: KafkaConsumer, lanes: Lanes, tracker: OffsetTracker) -> None:
        self._consumer = consumer
        self._lanes = lanes
        self._tracker = tracker
        self._lock = threading.Lock()
        self._requested: dict[TopicPartition, int] = {}

    def request(self, lane: Lane, offset: int) -> None:
        """Drop the messages of the lane's partition, which is read again from ``offset``. Ignored if the lane was
        already dropped, because the messages now in memory are newer, and would not be read again."""
        with self._lock:
            if not lane.dead:
                self._requested[lane.partition] = offset
                self._lanes.drop([lane.partition])

    def apply(self) -> set[TopicPartition]:
        """Seek as requested. Return the rewound partitions; their messages from earlier polls are void."""
        with self._lock:
            requested, self._requested = self._requested, {}
        for partition, offset in requested.items():
            self._lanes.drop([partition])
            undone = None if self._lanes.ordered else self._tracker.first_undone(partition)
            self._tracker.forget([partition])
            # Messages of other keys were dropped as well, and may have lower offsets than requested.
            self._consumer.seek(partition, offset if undone is None else min(offset, undone))
        if requested:
            Signal().wait(self._consumer.clock, _REWIND_REST_SECONDS)
        return set(requested)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that were revoked or lost, because their next owner starts at the committed offsets."""
        with self._lock:
            for partition in partitions:
                self._requested.pop(partition, None)
