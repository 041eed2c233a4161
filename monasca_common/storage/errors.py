# SPDX-License-Identifier: Apache-2.0
"""The errors of storage; no error of a database driver escapes it.

::

    StorageError
    ├── StorageUnavailable   the database is unreachable, locked, full or too slow: retry the call
    │   ├── LockTimeout      another transaction held the rows for too long: repeat the call
    │   └── TooMuchAtOnce    the batch exceeded a time-out or the resources of the database: write fewer rows
    ├── RowsRefused          these rows can never be stored, and no row was stored: write the other rows without them
    ├── MessagesRefused      the same, by the offset of a message and the index of its element
    ├── DuplicateKey         another row has this key
    ├── RangeBeyondNext      rows in between were never written: read again from ``next_offset``
    ├── TopicMismatch        the stored offsets belong to a topic that was deleted and recreated
    ├── UnsafeReceiver       a receiver of remote write would refuse repeated samples
    ├── SchemaMismatch       the database's schema does not fit this program: run ``monasca-common db upgrade``
    ├── QueryTimeout         a read exceeded its time-out
    ├── QueryTooLarge        a read would return too many rows
    └── NotSupported         the driver does not declare this capability
"""

from __future__ import annotations

from collections.abc import Mapping

from monasca_common.storage.batch_rows import RowOrigin


class StorageError(Exception):
    """The base class of storage errors."""


class StorageUnavailable(StorageError):
    """The database is unreachable, locked, full or too slow. The outcome of a pending commit is unknown. Call
    `Writer.write` again with the same range: it skips stored rows. ``after_seconds``: the wait that the database
    requests."""

    after_seconds: float | None = None


class LockTimeout(StorageUnavailable):
    """Another transaction locked the rows, or SQLite's file, for too long. Nothing was changed."""


class TooMuchAtOnce(StorageUnavailable):
    """The batch exceeds its time-out, or needs more locks or memory than the database has.

    Fewer rows may succeed, unless the database is frozen or otherwise unavailable.
    """


class RowsRefused(StorageError):
    """Some rows of a call can never be stored, so no row of the call was stored."""

    def __init__(self, reasons: Mapping[int, str], *, first: int = 0) -> None:
        """``reasons``: the reason for each refused row, by its position, counted from ``first``."""
        self.reasons = {first + position: reason for position, reason in reasons.items()}
        example = next(iter(reasons.values()), "")
        super().__init__(f"{len(reasons)} rows can never be stored; reason for the first one: {example}")


class MessagesRefused(StorageError):
    """Messages, or elements of messages, can never be stored. ``reasons``: the reason for each `RowOrigin`. No row of
    their part of the batch was stored."""

    def __init__(self, reasons: Mapping[RowOrigin, str]) -> None:
        self.reasons = dict(reasons)
        example = next(iter(self.reasons.values()), "")
        super().__init__(f"{len(self.reasons)} rows can never be stored; reason for the first one: {example}")


class DuplicateKey(StorageError):
    """A row with this key exists; the transaction was rolled back."""


class RangeBeyondNext(StorageError):
    """A range starts beyond the stored offset; read again from ``next_offset``."""

    def __init__(self, topic: str, partition: int, start: int, next_offset: int) -> None:
        super().__init__(
            f"a range of {topic}/{partition} begins at offset {start}, but rows are stored only below {next_offset}: "
            "read again from there"
        )
        self.next_offset = next_offset


class TopicMismatch(StorageError):
    """The stored offsets belong to another topic of the same name."""

    def __init__(self, topic: str, stored_id: str, topic_id: str) -> None:
        super().__init__(
            f"topic {topic!r} was deleted and recreated: stored offsets belong to id {stored_id}, but the topic has id "
            f"{topic_id}; if the messages of the old topic are stored or given up, run `monasca-common offsets reset`"
        )
        self.topic = topic
        self.stored_id = stored_id
        self.topic_id = topic_id


class UnsafeReceiver(StorageError):
    """A receiver of remote write is configured to refuse samples that are repeated after a crash."""


class SchemaMismatch(StorageError):
    """The database's schema is older or newer than this program's."""


class QueryTimeout(StorageError):
    """A read was cancelled after its time-out."""


class QueryTooLarge(StorageError):
    """A read would return too many rows: narrow it, or page through it."""


class NotSupported(StorageError):
    """The driver does not declare the capability that this call needs."""
