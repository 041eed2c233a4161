# SPDX-License-Identifier: Apache-2.0
"""The heart of the persister: one batch of one partition becomes rows, in one transaction with its offset."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from monasca_common.kafka.errors import Poison, ReadFrom, RetryLater
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import PartitionBatch
from monasca_common.models.rows import Decoded
from monasca_common.persister.account import Account
from monasca_common.persister.starts import StoredStarts
from monasca_common.persister.writers import Writers
from monasca_common.storage.base import Claim, Kind, Rows
from monasca_common.storage.errors import RangeBeyondNext, RowsRefused, StorageError, StorageUnavailable
from monasca_common.storage.row_keys import message_key

Decoder = Callable[[Sequence[bytes | None]], Decoded[Any]]


class RowsHandler:
    """A `Processor`'s handler; called by several threads at once, for a different partition each.

    What is no row, or can never be stored, is `Poison` message by message: dead letters, and the others come again
    without them. The database being away is `RetryLater`. The stored offset has the last word about the range: what
    is below it is skipped, and a range that begins beyond it is read again from there (`ReadFrom`).
    """

    def __init__(
        self, kind: Kind, group: str, decode: Decoder, writers: Writers, starts: StoredStarts, account: Account
    ) -> None:
        self._kind = kind
        self._group = group
        self._decode = decode
        self._writers = writers
        self._starts = starts
        self._account = account

    def __call__(self, part: PartitionBatch) -> None:
        decoded = self._decode(part.values)
        if decoded.errors:
            reasons = {index: str(error) for index, error in decoded.errors.items()}
            raise Poison(f"{len(reasons)} messages are no {self._kind} envelopes", reasons=reasons)
        ids = () if self._kind is Kind.METRICS else message_ids(part)
        self._write(part, Rows(self._kind, decoded.rows, part.offsets, ids))

    def _write(self, part: PartitionBatch, rows: Rows) -> None:
        topic, partition = part.topic_partition
        topic_id = self._starts.topic_ids.get(topic)
        claim = Claim(self._group, topic, partition, topic_id, part.start_offset, part.next_offset)
        fail_point("persister.before_write")
        began = time.monotonic()
        try:
            with self._writers.lend() as writer:
                written = writer.write(claim, rows)
        except StorageUnavailable as error:
            self._account.unavailable(error)
            raise RetryLater from error
        except RowsRefused as error:
            raise Poison(str(error), reasons=error.reasons) from error
        except RangeBeyondNext as error:
            raise ReadFrom(error.next_offset) from error
        except StorageError as error:
            # Nothing that trying again, or leaving single rows out, would cure.
            self._account.fail(error)
            raise RetryLater from error
        self._account.wrote(written, time.monotonic() - began)


def message_ids(part: PartitionBatch) -> list[bytes]:
    """What keys each message's row, for a whole batch without an object each."""
    topic, partition = part.topic_partition
    return [
        message_key(headers, topic, partition, offset)
        for headers, offset in zip(part.headers, part.offsets, strict=True)
    ]
