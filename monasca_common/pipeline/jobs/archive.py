# SPDX-License-Identifier: Apache-2.0
"""The job ``archive``, wired together from its configuration."""

from __future__ import annotations

import contextlib

from oslo_config import cfg

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.archive.archiving import Archiving, BatchReport
from monasca_common.pipeline.archive.options import archive_settings
from monasca_common.pipeline.jobs import loop
from monasca_common.pipeline.jobs.base import Job, Progress, Request, Watcher
from monasca_common.pipeline.jobs.status import served
from monasca_common.pipeline.ledger import Ledger
from monasca_common.pipeline.options import spark_settings
from monasca_common.pipeline.spark.session import check_installed, close_session, open_session
from monasca_common.pipeline.topic_view import TopicView


class ArchiveJob(Job):
    summary = "topics to Parquet files by the hour of each record's own time"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = archive_settings(conf)
        self._spark = spark_settings(conf)

    def run(self, request: Request, watcher: Watcher) -> Progress:
        if request.from_ms is not None or request.to_ms is not None:
            raise ConfigurationError(
                "archive goes on from where it stands, and takes neither --from nor --to: what a new archive begins "
                "with is said by the option start"
            )
        check_installed()
        settings, first = self._settings, self._settings.streams[0]
        ledger = Ledger(first.connection)
        ledger.check()
        with contextlib.ExitStack() as stack:
            views = [stack.enter_context(TopicView(stream.consumer)) for stream in settings.streams]
            for view in views:
                view.check_topics(view.topic)
            told = stack.enter_context(served("archive", first.status_host, first.status_port, watcher))
            spark = open_session(self._spark, "monasca-archive")
            stack.callback(close_session, spark)
            stack.enter_context(loop.spark_told())
            topics = [
                Archiving(spark, settings, stream, view, ledger)
                for stream, view in zip(settings.streams, views, strict=True)
            ]

            def step() -> BatchReport:
                report = BatchReport()
                for topic in topics:
                    report = report.plus(topic.step())
                return report

            return loop.run(step, spark, first.trigger_seconds, request, told)
