# SPDX-License-Identifier: Apache-2.0
"""Reads the whole messages of single offsets, for the few that need more than Spark was asked to read.

Carrying every record's key, headers and time to Python, just for those that become dead letters, takes more than twice
the time of reading the values alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from monasca_common.kafka import open_consumer
from monasca_common.kafka.errors import ConsumerError, TransportError
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.kafka.settings import ConsumerSettings

_ANSWER_SECONDS = 60.0
_POLL_MESSAGES = 500
# Reading this many unneeded records costs less than a seek.
_SEEK_BEYOND = 2_000


def originals(settings: ConsumerSettings, partition: int, offsets: Iterable[int]) -> Iterator[Message]:
    """The messages in order of offset. Raises `TransportError`, also if an offset is no longer in the log."""
    wanted = sorted(offsets, reverse=True)
    place = TopicPartition(settings.topics[0], partition)
    with open_consumer(settings, partitions=[place]) as consumer:
        position = None
        while wanted:
            if position is None or wanted[-1] - position > _SEEK_BEYOND:
                consumer.seek(place, wanted[-1])
            deadline = time.monotonic() + _ANSWER_SECONDS
            while not (batch := consumer.poll(_POLL_MESSAGES, 1.0)):
                for error in batch.errors:
                    if isinstance(error, ConsumerError):  # the next plan of ranges names the remedy
                        raise TransportError(str(error)) from error
                    raise error
                if time.monotonic() > deadline:
                    raise TransportError(f"offset {wanted[-1]} of {place.topic}/{partition} was not read in time")
            for message in batch:
                position = message.offset + 1
                if wanted and message.offset > wanted[-1]:
                    raise TransportError(f"offset {wanted[-1]} of {place.topic}/{partition} is no longer in the log")
                if wanted and message.offset == wanted[-1]:
                    wanted.pop()
                    yield message
