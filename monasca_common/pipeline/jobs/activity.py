# SPDX-License-Identifier: Apache-2.0
"""Stores the activity of jobs (whether they run, and their last batch) in the table ``pipeline_job``. A running job
writes the current time periodically, and each batch in the transaction that stores its offsets. Only status reports use
this table. `OffsetStore.advance` fences a second process of a job.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.tables import pipeline_job

LOG = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
#: A job that has not written for this time counts as silent. Five writes may fail, because a merge locks a whole SQLite
#: database.
SILENT_SECONDS = 60.0
# The maximum time for which a stopping job waits for an unavailable database.
_BRIEF = Bounds(statement_seconds=5.0, lock_seconds=5.0, idle_seconds=5.0)
_JOIN_SECONDS = 15.0


class JobState(StrEnum):
    """The state of a job. ``SILENT``: the job neither stopped cleanly nor wrote recently. ``UNKNOWN``: it has never
    written its activity."""

    RUNNING = "running"
    STOPPED = "stopped"
    SILENT = "silent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last batch with offsets. ``seconds``: the time from its start to its commit, without publishing."""

    ended_ms: int
    seconds: float
    offsets: int
    records: int


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of the newest process of a job. ``seen_ms``: the time of its last write."""

    started_ms: int
    seen_ms: int
    stopped_ms: int | None
    last_batch: LastBatch | None

    def state(self, now_ms: int) -> JobState:
        if self.stopped_ms is not None:
            return JobState.STOPPED
        return JobState.SILENT if now_ms - self.seen_ms > SILENT_SECONDS * 1000 else JobState.RUNNING


def find(connection: sa.Connection, source: Source) -> Activity | None:
    """Return the activity of the job that reads ``source``."""
    table = pipeline_job.c
    columns = (table.started, table.seen, table.stopped)
    of_batch = (table.batch_ended, table.batch_seconds, table.batch_offsets, table.batch_records)
    query = sa.select(*columns, *of_batch).where(table.consumer_group == source.group, table.topic == source.topic)
    row = connection.execute(query).first()
    if row is None:
        return None
    started_ms, seen_ms, stopped_ms, *batch = row
    return Activity(started_ms, seen_ms, stopped_ms, None if batch[0] is None else LastBatch(*batch))


def of_job(connection: str, group: str, topic: str) -> Activity | None:
    """Return the activity of the job that reads ``topic`` as ``group``. ``connection``: a SQLAlchemy URL. Raises
    `StorageUnavailable`."""
    with OffsetStore(connection, _BRIEF).reading() as transaction:
        return find(transaction, Source(group, topic, None))


def note_batch(connection: sa.Connection, source: Source, batch: LastBatch) -> None:
    """Write the last batch. Call this at the end of the batch's transaction, because the row stays locked until the
    commit."""
    changes = {
        "batch_ended": batch.ended_ms,
        "batch_seconds": batch.seconds,
        "batch_offsets": batch.offsets,
        "batch_records": batch.records,
    }
    _write(connection, source, batch.ended_ms, changes)


@contextlib.contextmanager
def heartbeat(
    connection: str,
    sources: Sequence[tuple[str, str]],
    clock: Clock | None = None,
    interval_seconds: float = BEAT_SECONDS,
) -> Iterator[None]:
    """Write the time every ten seconds while the block runs, for the job that reads ``sources``. If the database is
    unavailable, try again after ten seconds."""
    offset_store = OffsetStore(connection, _BRIEF)
    now_ms = (clock or SystemClock()).time_ms
    ended = threading.Event()

    def beat(**changes: int) -> None:
        try:
            with offset_store.writing() as transaction:
                for group, topic in sources:
                    _write(transaction, Source(group, topic, None), now_ms(), changes)
        except StorageUnavailable as error:
            LOG.debug("the activity of the job could not be written: %s", error)

    def run() -> None:
        while not ended.wait(interval_seconds):
            beat()

    thread = threading.Thread(target=run, name="pipeline-heartbeat", daemon=True)
    beat(started=now_ms())
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_JOIN_SECONDS)
        beat(stopped=now_ms())


def _write(connection: sa.Connection, source: Source, now_ms: int, changes: dict[str, Any]) -> None:
    """Set these columns and ``seen``. A job that writes is running, so ``stopped`` is cleared unless ``changes``
    contains it."""
    values = {"seen": now_ms, "stopped": None} | changes
    key = {"consumer_group": source.group, "topic": source.topic}
    adding = schema.insert(connection, pipeline_job).values(key | {"started": now_ms} | values)
    connection.execute(adding.on_conflict_do_update(index_elements=list(key), set_=values))
