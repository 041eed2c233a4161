# SPDX-License-Identifier: Apache-2.0
"""What storage can raise; nothing of a database driver's escapes it.

::

    StorageError
    ├── StorageUnavailable   a passing condition (away, locked, full, too slow): the same call may succeed later
    ├── RowsRefused          these rows can never be stored; nothing was, try the others without them
    ├── RangeBeyondNext      rows in between were never written: read again from ``next``
    ├── TopicMismatch        the stored offsets are those of a topic that was deleted and made again
    ├── WriterAlreadyRuns    another process writes to this database, and it can take only one
    ├── SchemaMismatch       the database's schema is not this program's: ``monasca-common db upgrade``
    ├── QueryTimeout         a read took longer than it may
    ├── QueryTooLarge        a read would return more than it may
    └── NotSupported         the driver does not declare this capability
"""

from __future__ import annotations

from collections.abc import Mapping


class StorageError(Exception):
    """Base of everything that storage raises."""


class StorageUnavailable(StorageError):
    """The database is away, locked, full or too slow. Whether a commit that was under way took effect is unknown:
    calling `Writer.write` again with the same range answers it, for what was stored is skipped."""


class RowsRefused(StorageError):
    """Rows that can never be stored, by their positions in the call; nothing of the call was stored."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        first = next(iter(reasons.values()), "")
        super().__init__(f"{len(reasons)} rows can never be stored, the first because: {first}")
        self.reasons = dict(reasons)


class RangeBeyondNext(StorageError):
    """A range starts beyond what is stored; ``next_offset`` is where to read on."""

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
            f"topic {topic!r} was deleted and made again: stored offsets are of id {stored_id}, the topic is "
            f"{topic_id}; if what the old one held is stored or given up, run `monasca-common offsets reset`"
        )
        self.topic = topic
        self.stored_id = stored_id
        self.topic_id = topic_id


class WriterAlreadyRuns(StorageError):
    """A second process wants to write to a database that takes one."""


class SchemaMismatch(StorageError):
    """The database's schema is older or newer than this program's."""


class QueryTimeout(StorageError):
    """A read was given up after its time-out."""


class QueryTooLarge(StorageError):
    """A read would return more rows than it may: narrow it, or page through it."""


class NotSupported(StorageError):
    """The driver does not declare the capability that this call needs."""
