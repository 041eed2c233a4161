# SPDX-License-Identifier: Apache-2.0
"""The base of handlers that store batches with their offsets: claims, dead letters' offsets, and errors of storage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from monasca_common.kafka.errors import Poison, ReadFrom, RetryLater
from monasca_common.kafka.message import TopicPartition
from monasca_common.runtime.member_health import MemberHealth, MemberState
from monasca_common.storage.base import Claim
from monasca_common.storage.errors import RangeBeyondNext, RowsRefused, StorageError, StorageUnavailable
from monasca_common.storage.start_offsets import StartOffsets
from monasca_common.storage.writer_pool import WriterPool


class HandlerParts(NamedTuple):
    """The parts of a member that its handler uses in one attempt. ``fail``: ends the member."""

    group: str
    writers: WriterPool
    starts: StartOffsets
    health: MemberHealth
    fail: Callable[[Exception], None]


class BatchHandler:
    """The common part of a `Processor`'s handlers that write to the database."""

    def __init__(self, parts: HandlerParts) -> None:
        self._group, self._writers, self._starts, self._health, self._fail = parts

    def accounted(self, partition: TopicPartition, start: int, end: int) -> None:
        """Advance the stored offset past dead letters and offsets without a message. A `Processor` calls it before it
        commits to Kafka. Raises `RetryLater` and `ReadFrom` like the handler."""
        with self._translated(partition), self._writers.writer() as writer:
            writer.accounted(self._claim(partition, start, end))
            self._stored()

    def _claim(self, partition: TopicPartition, start: int, end: int) -> Claim:
        topic_id = self._starts.topic_ids.get(partition.topic)
        return Claim(self._group, partition.topic, partition.partition, topic_id, start, end)

    def _stored(self) -> None:
        """Record that the database is available."""
        self._health.waits(MemberState.WAITING_FOR_DATABASE, "")

    @contextlib.contextmanager
    def _translated(self, partition: TopicPartition) -> Iterator[None]:
        """Translate storage errors to processor errors, and set the health of the member."""
        try:
            yield
        except StorageUnavailable as error:
            self._health.waits(MemberState.WAITING_FOR_DATABASE, str(error), partition)
            raise RetryLater from error
        except RowsRefused as error:
            raise Poison(str(error), reasons=error.reasons) from error
        except RangeBeyondNext as error:
            raise ReadFrom(error.next_offset) from error
        except StorageError as error:
            # Neither a retry nor omitting single rows helps.
            self._fail(error)
            raise RetryLater from error
