# SPDX-License-Identifier: Apache-2.0
"""The job ``backfill``: a past time of ``aggregate`` once more, wired together from its configuration."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from oslo_config import cfg

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.archive.history import History
from monasca_common.pipeline.archive.options import archive_settings
from monasca_common.pipeline.jobs import loop
from monasca_common.pipeline.jobs.backfilling import Backfill
from monasca_common.pipeline.jobs.base import Job, Progress, Request, Watcher
from monasca_common.pipeline.jobs.status import served
from monasca_common.pipeline.jobs.wiring import open_outbox
from monasca_common.pipeline.ledger import Ledger, Source
from monasca_common.pipeline.options import (
    BACKFILL_GROUP,
    aggregate_settings,
    backfill_settings,
    spark_settings,
    status_settings,
)
from monasca_common.pipeline.spark.session import close_session, open_session
from monasca_common.pipeline.topic_view import TopicView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BackfillJob(Job):
    summary = "aggregates of a past time once more, from Kafka or the archive; the stream may run meanwhile"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = aggregate_settings(conf)
        self._spark = spark_settings(conf)
        self._backfill = backfill_settings(conf)
        self._status = status_settings(conf, BACKFILL_GROUP)
        self._archive = archive_settings(conf) if self._backfill.from_archive else None

    def run(self, request: Request, watcher: Watcher) -> Progress:
        if request.from_ms is None or request.to_ms is None or request.from_ms >= request.to_ms:
            raise ConfigurationError("backfill needs a range of event times: write --from TIME --to LATER_TIME")
        settings = self._settings
        clock = SystemClock()
        ledger = Ledger(settings.stream.connection)
        ledger.check()
        began = clock.monotonic()
        with contextlib.ExitStack() as stack:
            view = stack.enter_context(TopicView(settings.stream.consumer))
            outbox = stack.enter_context(open_outbox(settings, ledger, view))
            told = stack.enter_context(served("backfill", self._status.host, self._status.port, watcher))
            spark = open_session(self._spark, "monasca-backfill")
            stack.callback(close_session, spark)
            stack.enter_context(loop.spark_told())
            history = self._history(spark, view) if self._archive is not None else None
            backfill = Backfill(spark, settings, view, ledger, self._backfill.margin_ms, history)
            report = backfill.run(request.from_ms, request.to_ms, told)
            published = outbox.publish(clock.time_ms())
            results = {
                "records": report.records,
                "groups": report.groups,
                "duplicates": report.duplicates,
                "periods": report.periods,
                "published_messages": published.messages,
                "undelivered_messages": published.undelivered,
            }
            progress = Progress(report.offsets, 0, clock.monotonic() - began, results)
            told.tell(progress)
            return progress

    def _history(self, spark: SparkSession, view: TopicView) -> History:
        assert self._archive is not None
        stream = next((each for each in self._archive.streams if each.topic == view.topic), None)
        if stream is None:
            raise ConfigurationError(
                f"source in group [pipeline_backfill] is archive, but topic in group [pipeline_archive] does not name "
                f"{view.topic!r}, which [pipeline_aggregate] reads: archive it, or backfill from kafka"
            )
        source = Source(stream.group, stream.topic, view.topic_id())
        ledger = Ledger(stream.connection)
        return History(spark, self._archive.location, source, ledger, self._archive.retention_days)
