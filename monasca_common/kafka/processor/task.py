# SPDX-License-Identifier: Apache-2.0
"""`Task`: messages of one partition that a handler is called with, and what was tried with them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from monasca_common.kafka.message import PartitionBatch

# What a message occupies beside its value: the client's own structures, and Python's object for it.
_OVERHEAD_BYTES = 500
# What a task occupies beside its messages. It counts where each key has a lane, and a task for one message.
_TASK_BYTES = 1_500


class Task:
    """Messages that go to the handler together, and what has happened to them so far."""

    __slots__ = (
        "attempts",
        "contiguous",
        "counted",
        "due",
        "first_failed_ms",
        "last_chance",
        "part",
        "rejected",
        "size",
        "tries",
        "waits",
    )

    def __init__(self, part: PartitionBatch, parent: Task | None = None, *, contiguous: bool = True) -> None:
        self.part = part
        self.size = sum(map(len, filter(None, part.values))) + len(part) * _OVERHEAD_BYTES + _TASK_BYTES
        self.contiguous: bool = contiguous  # no message was left out in between
        self.attempts: int = 0  # failed calls of the handler that had these messages
        self.first_failed_ms: int | None = None
        self.counted: bool = False  # already among the messages of the dead letters' ratio
        if parent is not None:
            self.contiguous = contiguous and parent.contiguous
            self.attempts, self.first_failed_ms = parent.attempts, parent.first_failed_ms
            self.counted = parent.counted
        self.tries = 0  # failed calls since these messages are together
        self.waits = 0  # times that a dependency was unavailable
        self.last_chance = False  # part of a larger batch that failed often enough: one call, then halves again
        self.rejected: Exception | None = None  # not for the handler any more, but for the dead letters
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

    def reject(self, errors: Mapping[int, Exception]) -> tuple[Task, ...]:
        """The parts of the task in order: each message with an error alone and rejected, and the messages in
        between."""
        tasks = []
        following = 0
        for index in sorted(errors):
            tasks.append(self.slice(following, index))
            doomed = Task(self.part.slice(index, index + 1), self)
            doomed.rejected = errors[index]
            tasks.append(doomed)
            following = index + 1
        tasks.append(self.slice(following, len(self.part)))
        return tuple(task for task in tasks if task is not None)
