# SPDX-License-Identifier: Apache-2.0
"""The progress of each job, from the database and Kafka. The job need not run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oslo_config import cfg

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.pipeline.aggregate import periods
from monasca_common.pipeline.aggregate.periods import Closing
from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.settings import archive_settings, has_archive
from monasca_common.pipeline.settings import AggregateSettings, StreamSettings, aggregate_settings
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.pipeline.source.topic import SourceTopic


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The progress in one partition. ``next_offset``: all below is accounted for. ``end``: the end of the log."""

    partition: int
    next_offset: int
    end: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The progress of one job. ``behind``: offsets. ``due``: how much is accounted for and not visible yet; ``waiting``
    names its unit. ``still_open``: periods that cannot be published before they are over."""

    job: str
    group: str
    topic: str
    behind: int
    due: int
    partitions: tuple[PartitionStatus, ...]
    waiting: str = "periods to publish"
    still_open: int = 0


def job_statuses(conf: cfg.ConfigOpts, clock: Clock | None = None) -> list[JobStatus]:
    """The progress of every job that follows a topic; of the archive only if its location is configured.

    Raises `ConfigurationError`, and the errors of Kafka and of storage.
    """
    now_ms = (clock or SystemClock()).time_ms()
    aggregate = aggregate_settings(conf)
    found = [_aggregate_status(aggregate, now_ms)]
    if has_archive(conf):
        found += [_archive_status(stream) for stream in archive_settings(conf).streams]
    return found


def _aggregate_status(settings: AggregateSettings, now_ms: int) -> JobStatus:
    offset_store, _, status = _job_status("aggregate", settings.stream)
    closing = Closing(settings.specifications, settings.slack_seconds * 1000)
    with offset_store.reading() as connection:
        found = periods.unpublished(connection, settings.publisher.job, closing, settings.emit, now_ms)
    return replace(status, due=found.due, still_open=found.still_open)


def _archive_status(stream: StreamSettings) -> JobStatus:
    offset_store, source, status = _job_status("archive", stream)
    with offset_store.reading() as connection:
        committed = manifest.find(connection, source, manifest.FileState.COMMITTED)
    return replace(status, due=len(committed), waiting="files to put in place")


def _job_status(job: str, stream: StreamSettings) -> tuple[OffsetStore, Source, JobStatus]:
    """The progress in the topic; nothing is due yet."""
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
    return offset_store, source, JobStatus(job, stream.group, stream.topic, behind, 0, partitions)
