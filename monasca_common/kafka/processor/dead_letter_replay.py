# SPDX-License-Identifier: Apache-2.0
"""Sends dead letters back to the topics that they came from, after the handler or the input was repaired."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import OffsetOutOfRange, RetriableError
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Batch, Message, PartitionBatch, Record, TopicPartition
from monasca_common.kafka.processor import dead_letters
from monasca_common.kafka.producer.producer import KafkaProducer

LOG = logging.getLogger(__name__)

MAX_REPLAYS = 3
PATIENCE_SECONDS = 30.0

_POLL_SECONDS = 0.2
_PREFIX = "dead-letter-"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it was read. ``origin``: ``topic/partition/offset`` of its message, or only the topic, or empty
    where its writer did not say. ``replays``: how often the message was sent back before. ``stays``: why it cannot be
    sent back; empty if it can."""

    message: Message
    origin_topic: str
    origin: str
    group: str
    error: str
    attempts: int
    replays: int
    stays: str

    @classmethod
    def of(cls, message: Message, max_replays: int = MAX_REPLAYS) -> Letter:
        headers = dict(message.headers)

        def text(name: str) -> str:
            return (headers.get(name) or b"").decode(errors="replace")

        def number(name: str) -> int:
            digits = text(name)
            return int(digits) if digits.isascii() and digits.isdigit() else 0

        place = (dead_letters.ORIGIN_TOPIC, dead_letters.ORIGIN_PARTITION, dead_letters.ORIGIN_OFFSET)
        topic, replays = text(dead_letters.ORIGIN_TOPIC), number(dead_letters.REPLAYS)
        stays = ""
        if not topic:
            stays = "it does not say which topic it came from"
        elif dead_letters.VALUE_CUT_FROM in headers:
            stays = "its value was cut"
        elif replays >= max_replays:
            stays = f"it was sent back {replays} times already: repair its reader first"
        return cls(
            message,
            origin_topic=topic,
            origin="/".join(filter(None, map(text, place))),
            group=text(dead_letters.GROUP),
            error=": ".join(filter(None, (text(dead_letters.ERROR_CLASS), text(dead_letters.ERROR_TEXT)))),
            attempts=number(dead_letters.ATTEMPTS),
            replays=replays,
            stays=stays,
        )

    @property
    def place(self) -> str:
        """Where the letter is, as ``topic/partition/offset``."""
        return f"{self.message.topic}/{self.message.partition}/{self.message.offset}"

    def original(self) -> Record:
        """The message as it was, under the id that it had: readers know it by that. A header counts its replays."""
        own = dict(self.message.headers)
        headers = [each for each in self.message.headers if each[0] != MESSAGE_ID_HEADER]
        return Record(
            self.message.value,
            key=self.message.key,
            headers=(
                *(each for each in headers if not each[0].startswith(_PREFIX)),
                (dead_letters.REPLAYS, b"%d" % (self.replays + 1)),
            ),
            message_id=own.get(dead_letters.ORIGIN_MESSAGE_ID) or self.message.message_id,
        )


class DeadLetterReplay:
    """Reads what a topic of dead letters holds when it starts, and no more: a letter that comes back meanwhile is left
    to the next run. ``consumer``: of that topic, in a group of its own, which remembers what was sent back.

    ``max_replays``: how often one message is sent back at most. ``limit``: how many letters one run handles at most.
    ``patience_seconds``: how long it waits for partitions, and for messages that are known to be there.
    """

    def __init__(
        self,
        consumer: KafkaConsumer,
        *,
        max_replays: int = MAX_REPLAYS,
        limit: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._consumer = consumer
        self._max_replays = max_replays
        self._limit = limit
        self._patience_seconds = patience_seconds

    def waiting(self) -> int:
        """How many offsets are left, up to where each partition ended at first; not each need be a letter."""
        return sum(max(0, end - (self._consumer.position(partition) or 0)) for partition, end in self._ends.items())

    def letters(self) -> Iterator[Letter]:
        """What `send` would handle; nothing is sent or committed."""
        for part in self._parts():
            for message in part:
                yield Letter.of(message, self._max_replays)

    def send(self, producer: KafkaProducer) -> Iterator[Letter]:
        """Send back what can be, and commit; each letter once it is dealt with.

        Raises `UndeliveredError`, after a commit of the letters before. What was sent back and is not committed, after
        a crash for instance, is sent again by the next run, under the same id.
        """
        for part in self._parts():
            done: dict[TopicPartition, int] = {}
            letters = [Letter.of(message, self._max_replays) for message in part]
            try:
                for topic, run in groupby(letters, lambda letter: "" if letter.stays else letter.origin_topic):
                    handled = same = list(run)
                    if topic:
                        report = producer.publish(topic, [letter.original() for letter in same])
                        undelivered = (each.index for each in (*report.failed, *report.unknown))
                        handled = same[: min(undelivered, default=len(same))]
                    if handled:
                        done[part.topic_partition] = handled[-1].message.offset + 1
                    yield from handled
                    if topic:
                        report.raise_for_undelivered()
            finally:  # also when a letter could not be delivered, or at Ctrl-C: those before it are done
                self._consumer.commit(done)

    def _parts(self) -> Iterator[PartitionBatch]:
        """The letters, up to where each partition ended at first."""
        ends, left = self._ends, self._limit
        reached: dict[TopicPartition, int] = {}
        deadline = self._deadline()
        while left != 0 and (unread := self._unread(ends, reached)):
            batch = self._poll()
            reached |= {partition: at.next_offset for partition, at in self._consumer.take_ends().items()}
            if not len(batch) and self._consumer.clock.monotonic() > deadline:
                raise RetriableError(
                    f"no letter for {self._patience_seconds:g} s, and {_named(unread)} has more: look at the brokers"
                )
            for part in batch.partitions:
                count = sum(offset < ends.get(part.topic_partition, 0) for offset in part.offsets)
                if left is not None:
                    count = min(count, left)
                    left -= count
                if count:
                    yield part.slice(0, count)
            if len(batch):
                deadline = self._deadline()

    @cached_property
    def _ends(self) -> dict[TopicPartition, int]:
        """Where each partition ends now; empty when another reader has them all."""
        consumer, deadline = self._consumer, self._deadline()
        while not consumer.assignment() and consumer.clock.monotonic() < deadline:
            self._poll()
        ends = consumer.seek_to_end()
        consumer.seek_to_committed()  # what a poll returned was not handled: it comes again
        return ends

    def _unread(
        self, ends: Mapping[TopicPartition, int], reached: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """The partitions that are still ours and not at their ends; an end may lie behind what is no message."""
        consumer = self._consumer
        mine = consumer.assignment() & ends.keys()
        return [one for one in sorted(mine) if max(consumer.position(one) or 0, reached.get(one, 0)) < ends[one]]

    def _poll(self) -> Batch:
        batch = self._consumer.poll(timeout=_POLL_SECONDS)
        for error in batch.errors:
            if isinstance(error, OffsetOutOfRange):
                LOG.warning("letters were deleted by retention before they were sent back: %s", error)
                self._consumer.seek_to_beginning([error.partition])
            elif not isinstance(error, RetriableError):
                raise error
        return batch

    def _deadline(self) -> float:
        return self._consumer.clock.monotonic() + self._patience_seconds


def _named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in partitions)
