# SPDX-License-Identifier: Apache-2.0
"""The job ``aggregate``, wired together from its configuration."""

from __future__ import annotations

import contextlib
import logging

from oslo_config import cfg

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.jobs import loop
from monasca_common.pipeline.jobs.aggregation import Aggregation
from monasca_common.pipeline.jobs.base import Job, Progress, Request, Watcher
from monasca_common.pipeline.jobs.status import served
from monasca_common.pipeline.jobs.wiring import open_outbox
from monasca_common.pipeline.ledger import Ledger
from monasca_common.pipeline.options import aggregate_settings, spark_settings
from monasca_common.pipeline.spark.session import close_session, open_session
from monasca_common.pipeline.topic_view import TopicView

LOG = logging.getLogger(__name__)


class AggregateJob(Job):
    summary = "metrics to aggregates of each hour and day, as the specifications say"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = aggregate_settings(conf)
        self._spark = spark_settings(conf)

    def run(self, request: Request, watcher: Watcher) -> Progress:
        if request.from_ms is not None or request.to_ms is not None:
            raise ConfigurationError(
                "aggregate goes on from where it stands, and takes neither --from nor --to: run the job backfill to "
                "compute a past time again"
            )
        settings, stream = self._settings, self._settings.stream
        for warning in settings.specifications.warnings:
            LOG.warning("specifications: %s", warning)
        ledger = Ledger(stream.connection)
        ledger.check()
        with contextlib.ExitStack() as stack:
            view = stack.enter_context(TopicView(stream.consumer))
            outbox = stack.enter_context(open_outbox(settings, ledger, view))
            told = stack.enter_context(served("aggregate", stream.status_host, stream.status_port, watcher))
            spark = open_session(self._spark, "monasca-aggregate")
            stack.callback(close_session, spark)
            stack.enter_context(loop.spark_told())
            aggregation = Aggregation(spark, settings, view, ledger, outbox)
            return loop.run(aggregation.step, spark, stream.trigger_seconds, request, told)
