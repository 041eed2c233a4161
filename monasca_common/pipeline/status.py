# SPDX-License-Identifier: Apache-2.0
"""Reads the progress of each job from the database and Kafka, even if the job is not running."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oslo_config import cfg

from monasca_common.alarms.settings import NoAlarmsDatabase
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.pipeline.aggregate import periods
from monasca_common.pipeline.aggregate.periods import Closing
from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.settings import archive_settings, has_archive
from monasca_common.pipeline.evaluate import gauges
from monasca_common.pipeline.evaluate.gauges import EvaluationGauges
from monasca_common.pipeline.evaluate.settings import EVALUATE_GROUP, evaluate_settings
from monasca_common.pipeline.jobs import activity
from monasca_common.pipeline.jobs.activity import Activity, JobState
from monasca_common.pipeline.settings import AggregateSettings, StreamSettings, aggregate_settings
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.pipeline.source.topic import SourceTopic


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The progress in one partition. ``next_offset``: the next offset to process. ``end``: the end of the log."""

    partition: int
    next_offset: int
    end: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The progress of one job. ``behind``: the number of offsets to process. ``due``: the number of results that are
    stored but not visible yet; ``waiting`` is their unit. ``still_open``: the number of periods that cannot be
    published before they end.

    ``activity``: ``None`` if no job has reported. ``evaluation``: the status of the job ``evaluate``,
    once it has started.
    """

    job: str
    group: str
    topic: str
    behind: int
    due: int
    partitions: tuple[PartitionStatus, ...]
    waiting: str = "periods to publish"
    still_open: int = 0
    state: JobState = JobState.UNKNOWN
    activity: Activity | None = None
    evaluation: EvaluationGauges | None = None


def job_statuses(conf: cfg.ConfigOpts, clock: Clock | None = None) -> list[JobStatus]:
    """Return the progress of every job that reads a topic. The job ``archive`` is included only if its location is
    configured, and ``evaluate`` only if it has started or its group is configured.

    Raises `ConfigurationError`, and the errors of Kafka and of storage.
    """
    now_ms = (clock or SystemClock()).time_ms()
    aggregate = aggregate_settings(conf)
    found = [_aggregate_status(aggregate, now_ms)]
    if has_archive(conf):
        found += [_archive_status(stream, now_ms) for stream in archive_settings(conf).streams]
    return found + _evaluate_statuses(conf, now_ms)


def _aggregate_status(settings: AggregateSettings, now_ms: int) -> JobStatus:
    offset_store, _, status = _job_status("aggregate", settings.stream, now_ms)
    closing = Closing(settings.specifications, settings.slack_seconds * 1000)
    with offset_store.reading() as connection:
        found = periods.unpublished(connection, settings.publisher.job, closing, settings.emit, now_ms)
    return replace(status, due=found.due, still_open=found.still_open)


def _archive_status(stream: StreamSettings, now_ms: int) -> JobStatus:
    offset_store, source, status = _job_status("archive", stream, now_ms)
    with offset_store.reading() as connection:
        committed = manifest.find(connection, source, manifest.FileState.COMMITTED)
    return replace(status, due=len(committed), waiting="files to place")


def _evaluate_statuses(conf: cfg.ConfigOpts, now_ms: int) -> list[JobStatus]:
    try:
        stream = evaluate_settings(conf).stream
    except NoAlarmsDatabase:
        return []
    offset_store = OffsetStore(stream.connection)
    offset_store.check()
    with offset_store.reading() as connection:
        evaluation = gauges.read_gauges(connection, stream.name)
    if evaluation is None and EVALUATE_GROUP not in conf.list_all_sections():
        return []
    _, _, status = _job_status("evaluate", stream, now_ms)
    waiting = 0 if evaluation is None else evaluation.unpublished
    return [replace(status, due=waiting, waiting="transitions to publish", evaluation=evaluation)]


def _job_status(job: str, stream: StreamSettings, now_ms: int) -> tuple[OffsetStore, Source, JobStatus]:
    """Return the progress in the topic, without due results."""
    offset_store = OffsetStore(stream.connection)
    offset_store.check()
    with SourceTopic(stream.consumer) as topic:
        extents = topic.extents()
        source = Source(stream.group, stream.topic, topic.topic_id())
    stored = offset_store.next_offsets(source)
    partitions = tuple(
        PartitionStatus(each, stored.get(each, extent.first), extent.end) for each, extent in sorted(extents.items())
    )
    with offset_store.reading() as connection:
        found = activity.find(connection, source)
    status = JobStatus(
        job,
        stream.group,
        stream.topic,
        behind=sum(each.end - each.next_offset for each in partitions),
        due=0,
        partitions=partitions,
        state=JobState.UNKNOWN if found is None else found.state(now_ms),
        activity=found,
    )
    return offset_store, source, status
