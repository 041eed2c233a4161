# SPDX-License-Identifier: Apache-2.0
"""Builds the job ``backfill`` from its configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oslo_config import cfg

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.aggregate.job import open_period_publisher
from monasca_common.pipeline.aggregate.periods import MESSAGES
from monasca_common.pipeline.archive.settings import archive_settings
from monasca_common.pipeline.backfill.batch import Backfill
from monasca_common.pipeline.backfill.history import History
from monasca_common.pipeline.jobs.job import UNDELIVERED, Job, JobProgress, JobRequest, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.jobs.resources import open_audit
from monasca_common.pipeline.settings import BACKFILL_GROUP, aggregate_settings, backfill_settings, spark_settings
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BackfillJob(Job):
    summary = "recomputes past aggregates from Kafka or the archive; the job aggregate may run at the same time"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = aggregate_settings(conf)
        self._spark = spark_settings(conf)
        self._backfill = backfill_settings(conf)
        self._archive = archive_settings(conf) if self._backfill.source == "archive" else None
        if self._archive is not None and self._settings.stream.otlp is not None:
            raise ConfigurationError(
                f"source in group [{BACKFILL_GROUP}] is archive, but {self._settings.stream.topic!r} has OTLP "
                "messages, which are archived by Kafka's time instead of the times of their points: backfill from kafka"
            )

    def facts(self) -> Mapping[str, object]:
        source = {"from": "the archive and Kafka"} if self._archive is not None else {}
        return {**self._settings.stream.facts(), **source, "writes": self._settings.output_topic}

    def run(self, request: JobRequest, watcher: JobWatcher) -> JobProgress:
        if request.from_ms is None or request.to_ms is None or request.from_ms >= request.to_ms:
            raise ConfigurationError("backfill requires a range of event times: write --from TIME --to LATER_TIME")
        settings = self._settings
        clock = SystemClock()
        offset_store = OffsetStore(settings.stream.connection)
        offset_store.check()
        began = clock.monotonic()
        with contextlib.ExitStack() as stack:
            audit = stack.enter_context(open_audit(settings.stream))
            topic = stack.enter_context(SourceTopic(settings.stream.consumer))
            publisher = stack.enter_context(open_period_publisher(settings, offset_store, topic, audit))
            watched = stack.enter_context(served("backfill", self._backfill.status, watcher))
            spark = stack.enter_context(spark_session(self._spark, "monasca-backfill"))
            history = self._history(spark, topic) if self._archive is not None else None
            backfill = Backfill(spark, settings, topic, offset_store, self._backfill.margin_seconds * 1000, history)
            replaced = backfill.run(request.from_ms, request.to_ms, watched)
            published = publisher.publish(clock.time_ms())
            results = {name: published[name] for name in (MESSAGES, UNDELIVERED)}
            progress = replaced.plus(JobProgress(batch_seconds=clock.monotonic() - began, results=results))
            watched.tell(progress)
            return progress

    def _history(self, spark: SparkSession, topic: SourceTopic) -> History:
        assert self._archive is not None
        stream = next((each for each in self._archive.streams if each.topic == topic.name), None)
        if stream is None:
            raise ConfigurationError(
                f"source in group [pipeline_backfill] is archive, but topic in group [pipeline_archive] does not name "
                f"{topic.name!r}, which [pipeline_aggregate] reads: archive it, or backfill from kafka"
            )
        source = Source(stream.group, stream.topic, topic.topic_id())
        offset_store = OffsetStore(stream.connection)
        return History(spark, self._archive.location, source, offset_store, self._archive.retention_days)
