# SPDX-License-Identifier: Apache-2.0
"""Publishes the messages that cannot be handled: checks the limits, sends dead letters, waits for acknowledgements."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import DeadLetterLimit, MessagingError, Poison
from monasca_common.kafka.log_limit import LogLimit
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.kafka.processor.dead_letters import DeadLetterCount, DeadLetters, Failure, dead_letter
from monasca_common.kafka.processor.hooks import Hooks
from monasca_common.kafka.processor.publishing import AcknowledgedPublisher
from monasca_common.kafka.processor.queues import Lane, Task
from monasca_common.kafka.processor.transactions import TransactionalPublisher
from monasca_common.kafka.settings import ConsumerSettings

LOG = logging.getLogger(__name__)

_MAX_REASON = 200
_WORD = re.compile(r"\w{3,}")


class DeadLetterPublisher:
    """Used by the handler threads of one processor."""

    def __init__(
        self,
        policy: DeadLetters,
        settings: ConsumerSettings,
        clock: Clock,
        hooks: Hooks,
        publisher: AcknowledgedPublisher | TransactionalPublisher,
        log_limit: LogLimit,
    ) -> None:
        self._policy = policy
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._publisher = publisher
        self._log_limit = log_limit
        self._count = DeadLetterCount(policy)

    def topics(self) -> list[str]:
        """The dead-letter topics of the consumer's topics; each must exist."""
        return sorted({self._topic(origin) for origin in self._settings.topics})

    def passed(self, task: Task) -> None:
        """Note that the task was handled."""
        if not task.counted:
            self._count.passed(task.part.topic_partition, len(task.part))

    def admit(self, task: Task, errors: Mapping[int, Exception]) -> tuple[list[int], DeadLetterLimit | None]:
        """The positions in the task that may be sent, and the limit that was crossed after them, if one was."""
        return self._count.admit_some(task.part.topic_partition, errors, len(task.part))

    def send(self, lane: Lane, task: Task, errors: Sequence[Exception]) -> None:
        """Send a dead letter for each message of the task. Returns once all are acknowledged; raises `Abandoned`."""
        messages = list(task.part)
        first_failed_ms = self._clock.time_ms() if task.first_failed_ms is None else task.first_failed_ms
        letters = []
        for message, error in zip(messages, errors, strict=True):
            self._hooks.call("before_dead_letter", message, error)
            failure = Failure(error, task.attempts, first_failed_ms)
            letters.append(dead_letter(message, failure, self._settings.group_id))
        self._publisher.bury(lane, task, self._topic(task.part.topic_partition.topic), letters)
        for message, error in zip(messages, errors, strict=True):
            self._log(message, error)
            self._hooks.call("after_dead_letter", message, error)

    def _log(self, message: Message, error: Exception) -> None:
        more = self._log_limit.admit("dead letter", message.topic, type(error).__name__)
        if more is not None:
            place = (message.topic, message.partition, message.offset)
            LOG.warning("dead letter of %s/%d offset %d: %s%s", *place, reason_without_payload(message, error), more)

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget partitions that another member owns now."""
        self._count.forget(partitions)

    def _topic(self, origin: str) -> str:
        return self._policy.topic_for(origin, self._settings.dead_letter_topic)


def reason_without_payload(message: Message, error: Exception) -> str:
    """One line on why a message is a dead letter, for a log. The text of an error that a handler did not write for
    people stays out, and so does each word that the message has as well."""
    name = type(error).__name__
    if not isinstance(error, Poison | MessagingError):
        return name
    payload = b" ".join(filter(None, (message.key, message.value, *(value for _, value in message.headers))))
    text = " ".join(str(error).split())[:_MAX_REASON]
    return f"{name}: {_WORD.sub(lambda word: '…' if word[0].encode() in payload else word[0], text)}"
