# SPDX-License-Identifier: Apache-2.0
"""Takes what no handler can take: checks the limits, writes the letters, and waits for their acknowledgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.dead_letter import DeadLetterCount, DeadLetters, Failure, dead_letter
from monasca_common.kafka.errors import DeadLetterLimit
from monasca_common.kafka.hooks import Hooks
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processing.lanes import Lane, Task
from monasca_common.kafka.processing.outbox import Outbox
from monasca_common.kafka.processing.transactional_outbox import TransactionalOutbox
from monasca_common.kafka.settings import ConsumerSettings


class DeadLetterOffice:
    """Used by the handler threads of one processor."""

    def __init__(
        self,
        policy: DeadLetters,
        settings: ConsumerSettings,
        clock: Clock,
        hooks: Hooks,
        outbox: Outbox | TransactionalOutbox,
    ) -> None:
        self._policy = policy
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._outbox = outbox
        self._count = DeadLetterCount(policy)

    def topics(self) -> list[str]:
        """Where letters of the consumer's topics go; each must exist."""
        return sorted({self._topic(origin) for origin in self._settings.topics})

    def passed(self, task: Task) -> None:
        """The task was handled."""
        if not task.counted:
            self._count.passed(task.part.topic_partition, len(task.part))

    def admit(self, task: Task, errors: Mapping[int, Exception]) -> tuple[list[int], DeadLetterLimit | None]:
        """The positions in the task that may be sent, and the limit that was crossed after them, if one was."""
        return self._count.admit_some(task.part.topic_partition, errors, len(task.part))

    def send(self, lane: Lane, task: Task, errors: Sequence[Exception]) -> None:
        """A letter for each message of the task. Returns once all are acknowledged; raises `Abandoned`."""
        messages = list(task.part)
        first_failed_ms = self._clock.time_ms() if task.first_failed_ms is None else task.first_failed_ms
        letters = []
        for message, error in zip(messages, errors, strict=True):
            self._hooks.tell("before_dead_letter", message, error)
            failure = Failure(error, task.attempts, first_failed_ms)
            letters.append(dead_letter(message, failure, self._settings.group_id))
        self._outbox.bury(lane, task, self._topic(task.part.topic_partition.topic), letters)
        for message, error in zip(messages, errors, strict=True):
            self._hooks.tell("after_dead_letter", message, error)

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """They are somebody else's now."""
        self._count.forget(partitions)

    def _topic(self, origin: str) -> str:
        return self._policy.topic_for(origin, self._settings.dead_letter_topic)
