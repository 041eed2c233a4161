# SPDX-License-Identifier: Apache-2.0
"""The progress of each job, from the database and Kafka. The job need not run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa
from oslo_config import cfg

from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.settings import archive_settings, has_archive
from monasca_common.pipeline.settings import StreamSettings, aggregate_settings
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.storage.sql.tables import aggregate_period


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The progress in one partition. ``next_offset``: all below is accounted for. ``end``: the end of the log."""

    partition: int
    next_offset: int
    end: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The progress of one job. ``behind``: offsets. ``due``: how much is accounted for and not visible yet; ``waiting``
    names its unit."""

    job: str
    group: str
    topic: str
    behind: int
    due: int
    partitions: tuple[PartitionStatus, ...]
    waiting: str = "periods to publish"


def job_statuses(conf: cfg.ConfigOpts) -> list[JobStatus]:
    """The progress of every job that follows a topic; of the archive only if its location is configured.

    Raises `ConfigurationError`, and the errors of Kafka and of storage.
    """
    aggregate = aggregate_settings(conf)
    due = functools.partial(_due, aggregate.publisher.job)
    found = [_job_status("aggregate", aggregate.stream, due, "periods to publish")]
    if has_archive(conf):
        streams = archive_settings(conf).streams
        found += [_job_status("archive", stream, _committed, "files to put in place") for stream in streams]
    return found


def _job_status(job: str, stream: StreamSettings, due: Callable[[OffsetStore, Source], int], waiting: str) -> JobStatus:
    offset_store = OffsetStore(stream.connection)
    offset_store.check()
    with SourceTopic(stream.consumer) as topic:
        extents = topic.extents()
        source = Source(stream.group, stream.topic, topic.topic_id())
        stored = offset_store.next_offsets(source)
    partitions = tuple(
        PartitionStatus(partition, stored.get(partition, extent.first), extent.end)
        for partition, extent in sorted(extents.items())
    )
    behind = sum(each.end - each.next_offset for each in partitions)
    return JobStatus(job, stream.group, stream.topic, behind, due(offset_store, source), partitions, waiting)


def _due(job: str, offset_store: OffsetStore, _: Source) -> int:
    table = aggregate_period.c
    with offset_store.reading() as connection:
        query = sa.select(sa.func.count()).where(table.job == job, table.version > table.published)
        return int(connection.scalar(query) or 0)


def _committed(offset_store: OffsetStore, source: Source) -> int:
    with offset_store.reading() as connection:
        return len(manifest.find(connection, source, manifest.FileState.COMMITTED))
