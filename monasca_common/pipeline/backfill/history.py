# SPDX-License-Identifier: Apache-2.0
"""Reads the archived records of a past time range, and the offsets up to which the archive is complete. Later records
are read from Kafka."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monasca_common.pipeline.archive import manifest, reader
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.manifest import ArchivedFile, FileState
from monasca_common.pipeline.archive.reader import Archive, Selection
from monasca_common.pipeline.errors import ArchiveUnavailable, RecordsLost
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.storage.retention import DAY_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = logging.getLogger(__name__)

_PLACING_SECONDS = 60.0
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class History:
    """Reads one archived topic, with the offset store of the job ``archive``. A retention of 0 days means no limit."""

    _spark: SparkSession
    _location: str = field(repr=False)
    _source: Source
    _offset_store: OffsetStore
    _retention_days: int

    def records(self, from_ms: int, to_ms: int, now_ms: int) -> tuple[DataFrame | None, dict[int, int]]:
        """Return the records with event times in [from_ms, to_ms) and the connector's columns (``None`` if there are no
        files), and the offset of each partition up to which the archive is complete.

        Raises `RecordsLost` if the range begins before the retention or has records of a former topic of this name, and
        `ArchiveUnavailable` if files are not placed in time.
        """
        if self._retention_days and from_ms < now_ms - self._retention_days * DAY_MS:
            raise RecordsLost(
                f"the archive keeps {self._source.topic} for {self._retention_days} days, and the range begins before "
                "that: choose a later range"
            )
        files, next_offsets = self._in_place()
        begins: dict[int, int] = {}
        for file in files:
            partition, first = file.offsets.partition, file.offsets.first
            begins[partition] = min(first, begins.get(partition, first))
        for partition, first in sorted(begins.items()):
            if first:
                LOG.warning(
                    "the archive of %s/%s begins at offset %s: earlier records are not counted",
                    *(self._source.topic, partition, first),
                )
        selection = Selection(from_ms, to_ms)
        files = [file for file in files if selection.has_time(file.hour_ms, file.hour_ms + HOUR_MS - 1)]
        topic_id = self._source.topic_id
        if topic_id is not None and any(file.topic_id not in (None, topic_id) for file in files):
            raise RecordsLost(
                f"the topic {self._source.topic} was recreated, and the archived range has records of the former one, "
                "whose offsets do not show whether the stream has read them: choose a later range"
            )
        if not files:
            return None, next_offsets
        archive = Archive(self._location, self._source.topic, selection)
        return reader.archived_frame(self._spark, archive, [file.path for file in files]), next_offsets

    def _in_place(self) -> tuple[list[ArchivedFile], dict[int, int]]:
        """Return the files and the next offsets, as soon as every file is in place."""
        deadline = time.monotonic() + _PLACING_SECONDS
        while True:
            next_offsets = self._offset_store.next_offsets(self._source)
            with self._offset_store.reading() as connection:
                committed = manifest.find(connection, self._source, FileState.COMMITTED)
                placed = manifest.find(connection, self._source, FileState.PLACED)
            if not committed and next_offsets == self._offset_store.next_offsets(self._source):
                return placed, next_offsets
            if time.monotonic() > deadline:
                raise ArchiveUnavailable(
                    f"the archive of {self._source.topic} has files that are not in place: if the job archive is "
                    "not running, run it once"
                )
            time.sleep(_POLL_SECONDS)
