# SPDX-License-Identifier: Apache-2.0
"""Builds the job ``aggregate`` from its configuration."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from oslo_config import cfg

from monasca_common.audit.reporter import AuditReporter, audited
from monasca_common.kafka import open_producer
from monasca_common.pipeline.aggregate.batch import Aggregation
from monasca_common.pipeline.aggregate.periods import Closing, PeriodPublisher
from monasca_common.pipeline.jobs import loop
from monasca_common.pipeline.jobs.activity import heartbeat
from monasca_common.pipeline.jobs.job import Job, JobProgress, JobRequest, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.jobs.resources import open_audit, open_offset_store
from monasca_common.pipeline.settings import AggregateSettings, aggregate_settings, spark_settings
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.rejected import dead_letter_topic
from monasca_common.pipeline.spark.session import spark_session

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def open_period_publisher(
    settings: AggregateSettings, offset_store: OffsetStore, topic: SourceTopic, audit: AuditReporter | None
) -> Iterator[PeriodPublisher]:
    """Open the publisher with its producer. Raises `ConfigurationError` if a topic that it writes to does not exist."""
    stream = settings.stream
    topic.check_topics(settings.output_topic, dead_letter_topic(stream))
    closing = Closing(settings.specifications, settings.slack_seconds * 1000)
    with open_producer(audited(stream.producer, audit)) as producer:
        yield PeriodPublisher(offset_store, producer, settings.output_topic, settings.publisher, closing, settings.emit)


class AggregateJob(Job):
    summary = "computes hourly and daily aggregates of metrics, according to the specifications"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = aggregate_settings(conf)
        self._spark = spark_settings(conf)

    def facts(self) -> Mapping[str, object]:
        return {**self._settings.stream.facts(), "writes": self._settings.output_topic, "spark": self._spark.master}

    def run(self, request: JobRequest, watcher: JobWatcher) -> JobProgress:
        request.refuse_times("aggregate", "run the job backfill to recompute a past time range")
        settings, stream = self._settings, self._settings.stream
        for warning in settings.specifications.warnings:
            LOG.warning("specifications: %s", warning)
        with contextlib.ExitStack() as stack:
            audit = stack.enter_context(open_audit(stream))
            offset_store = open_offset_store(stream, audit)
            topic = stack.enter_context(SourceTopic(stream.consumer))
            publisher = stack.enter_context(open_period_publisher(settings, offset_store, topic, audit))
            watched = stack.enter_context(served("aggregate", stream.status, watcher))
            stack.enter_context(heartbeat(stream.connection, [(stream.group, stream.topic)]))
            spark = stack.enter_context(spark_session(self._spark, "monasca-aggregate"))
            aggregation = Aggregation(spark, settings, topic, offset_store, publisher)
            return loop.run(aggregation.step, spark, stream.trigger_seconds, request, watched)
