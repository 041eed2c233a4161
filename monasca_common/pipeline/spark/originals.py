# SPDX-License-Identifier: Apache-2.0
"""Messages of single offsets, whole: for the few of which more is needed than Spark was asked to read.

To carry every record's key, headers and time to Python, for the sake of those that become dead letters, would take
more than twice the time of reading the values alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from monasca_common.kafka.entry_points import entry_point
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.kafka.plugins import CONSUMERS
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.pipeline.errors import RecordsLost

_ANSWER_SECONDS = 60.0
_POLL_MESSAGES = 500
# To read so many that are not wanted costs less than to seek.
_SEEK_BEYOND = 2_000


def originals(settings: ConsumerSettings, partition: int, offsets: Iterable[int]) -> Iterator[Message]:
    """In order of offset. Raises `TransportError`, and `OffsetOutOfRange` or `RecordsLost` for what is gone."""
    wanted = sorted(offsets, reverse=True)
    place = TopicPartition(settings.topics[0], partition)
    factory = entry_point(CONSUMERS, settings.connection.driver, option="driver")
    with factory(settings, partitions=[place]) as consumer:
        position = None
        while wanted:
            if position is None or wanted[-1] - position > _SEEK_BEYOND:
                consumer.seek(place, wanted[-1])
            deadline = time.monotonic() + _ANSWER_SECONDS
            while not (batch := consumer.poll(_POLL_MESSAGES, 1.0)):
                for error in batch.errors:
                    raise error
                if time.monotonic() > deadline:
                    raise TransportError(f"offset {wanted[-1]} of {place.topic}/{partition} was not read in time")
            for message in batch:
                position = message.offset + 1
                if wanted and message.offset > wanted[-1]:
                    raise RecordsLost(f"{place.topic}/{partition}: offset {wanted[-1]} was there, and is no longer")
                if wanted and message.offset == wanted[-1]:
                    wanted.pop()
                    yield message
