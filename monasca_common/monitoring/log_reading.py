# SPDX-License-Identifier: Apache-2.0
"""Reads partitions from an offset to their ends, as no group: nothing is asked of one, nor committed to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from monasca_common.kafka import GivenStarts, Message, RetriableError, open_consumer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings

_NAME = "monasca-lag"  # a consumer needs the name of a group; this one never gets an offset
_POLL_SECONDS = 0.2
_POLL_MESSAGES = 5000
_MIB = 1024 * 1024


def read_partitions(
    connection: ConnectionSettings,
    starts: Mapping[TopicPartition, int],
    *,
    timeout_seconds: float,
    only_first: bool = False,
) -> Iterator[Message]:
    """What is in these partitions from each start to the end of the log; or the first message of each.

    Raises `RetriableError` when time is up before every partition is read: what was not read is not known.
    """
    if not starts:
        return
    settings = ConsumerSettings(connection, (_NAME,), _NAME, buffer_bytes=_MIB, topic_check_seconds=0.0)
    missing = set(starts)
    deadline = time.monotonic() + timeout_seconds
    with open_consumer(settings, partitions=starts, listener=GivenStarts(starts)) as consumer:
        while missing and time.monotonic() < deadline:
            for part in consumer.poll(_POLL_MESSAGES, timeout=_POLL_SECONDS).partitions:
                yield from part
                if only_first:
                    missing.discard(part.topic_partition)
                    consumer.pause([part.topic_partition])
            missing -= consumer.take_ends().keys()
    if missing:
        first = min(missing)
        raise RetriableError(
            f"{first.topic}/{first.partition} and {len(missing) - 1} more could not be read within "
            f"{timeout_seconds:g} s, so nothing is known of lag: try again, or look at fewer groups"
        )
