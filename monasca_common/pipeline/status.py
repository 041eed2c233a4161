# SPDX-License-Identifier: Apache-2.0
"""The progress of each job, from the database and Kafka. The job need not run."""

from __future__ import annotations

from collections.abc import Mapping
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
from monasca_common.pipeline.jobs.activity import JobState, LastBatch
from monasca_common.pipeline.settings import AggregateSettings, StreamSettings, aggregate_settings
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.pipeline.source.topic import Extent, SourceTopic
from monasca_common.pipeline.source.unread import unread_times


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The progress in one partition. ``next_offset``: all below is accounted for. ``end``: the end of the log.
    ``lag_seconds``: the age, by event time, of the oldest record in between; ``None`` if Kafka did not say it."""

    partition: int
    next_offset: int
    end: int
    lag_seconds: float | None = 0.0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The progress of one job. ``behind``: offsets. ``due``: how much is accounted for and not visible yet; ``waiting``
    names its unit. ``still_open``: periods that cannot be published before they are over.

    ``lag_seconds``: that of the partition that is furthest behind. ``state``, ``seen_ms`` and ``last_batch``: see
    `monasca_common.pipeline.jobs.activity`; ``started_ms`` and ``seen_ms`` are ``None`` if no job has written there.
    ``evaluation``: of the job that evaluates alarms, once it has begun.
    """

    job: str
    group: str
    topic: str
    behind: int
    due: int
    partitions: tuple[PartitionStatus, ...]
    waiting: str = "periods to publish"
    still_open: int = 0
    lag_seconds: float | None = 0.0
    state: JobState = JobState.UNKNOWN
    started_ms: int | None = None
    seen_ms: int | None = None
    last_batch: LastBatch | None = None
    evaluation: EvaluationGauges | None = None


def job_statuses(conf: cfg.ConfigOpts, clock: Clock | None = None) -> list[JobStatus]:
    """The progress of every job that follows a topic; of the archive only if its location is configured, of the
    evaluation only if it has begun or its group is configured.

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
    return replace(status, due=len(committed), waiting="files to put in place")


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
    """The progress in the topic; nothing is due yet."""
    offset_store = OffsetStore(stream.connection)
    offset_store.check()
    with SourceTopic(stream.consumer) as topic:
        extents = topic.extents()
        source = Source(stream.group, stream.topic, topic.topic_id())
    partitions = _partitions(stream, extents, offset_store.next_offsets(source), now_ms)
    lags = [each.lag_seconds for each in partitions]
    status = JobStatus(
        job,
        stream.group,
        stream.topic,
        behind=sum(each.end - each.next_offset for each in partitions),
        due=0,
        partitions=partitions,
        lag_seconds=None if None in lags else max(filter(None, lags), default=0.0),
    )
    return offset_store, source, _with_activity(status, offset_store, source, now_ms)


def _partitions(
    stream: StreamSettings, extents: Mapping[int, Extent], stored: Mapping[int, int], now_ms: int
) -> tuple[PartitionStatus, ...]:
    next_offsets = {each: stored.get(each, extent.first) for each, extent in sorted(extents.items())}
    # What retention has removed cannot be asked for its time.
    unread = {
        each: max(offset, extents[each].first) for each, offset in next_offsets.items() if offset < extents[each].end
    }
    times_ms = unread_times(stream.consumer, unread)
    lags: dict[int, float | None] = dict.fromkeys(unread)
    lags |= {each: 0.0 if at is None else max(0.0, (now_ms - at) / 1000) for each, at in times_ms.items()}
    return tuple(
        PartitionStatus(each, offset, extents[each].end, lags.get(each, 0.0)) for each, offset in next_offsets.items()
    )


def _with_activity(status: JobStatus, offset_store: OffsetStore, source: Source, now_ms: int) -> JobStatus:
    with offset_store.reading() as connection:
        found = activity.find(connection, source)
    if found is None:
        return status
    return replace(
        status,
        state=found.state(now_ms),
        started_ms=found.started_ms,
        seen_ms=found.seen_ms,
        last_batch=found.last_batch,
    )
