# SPDX-License-Identifier: Apache-2.0
"""The job ``backfill``: a past time of ``aggregate`` once more, wired together from its configuration."""

from __future__ import annotations

import contextlib

from oslo_config import cfg

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.jobs.backfilling import Backfill
from monasca_common.pipeline.jobs.base import Job, Progress, Request, Watcher
from monasca_common.pipeline.jobs.wiring import open_outbox
from monasca_common.pipeline.ledger import Ledger
from monasca_common.pipeline.options import aggregate_settings, backfill_margin_seconds, spark_settings
from monasca_common.pipeline.spark.session import open_session
from monasca_common.pipeline.topic_view import TopicView


class BackfillJob(Job):
    summary = "aggregates of a past time once more, from what Kafka still has; the stream may run meanwhile"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = aggregate_settings(conf)
        self._spark = spark_settings(conf)
        self._margin_ms = backfill_margin_seconds(conf) * 1000

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
            spark = open_session(self._spark, "monasca-backfill")
            stack.callback(spark.stop)
            backfill = Backfill(spark, settings, view, ledger, self._margin_ms)
            report = backfill.run(
                request.from_ms,
                request.to_ms,
                lambda done, left: watcher.tell(Progress(done, left, clock.monotonic() - began)),
            )
            published = outbox.publish(clock.time_ms())
        results = {"records": report.records, "groups": report.groups, "periods": report.periods}
        results |= {"published_messages": published.messages, "undelivered_messages": published.undelivered}
        progress = Progress(report.offsets, 0, clock.monotonic() - began, results)
        watcher.tell(progress)
        return progress
