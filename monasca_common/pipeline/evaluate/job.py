# SPDX-License-Identifier: Apache-2.0
"""Builds the job ``evaluate`` from its configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from oslo_config import cfg

from monasca_common.audit.reporter import audited
from monasca_common.kafka import open_producer
from monasca_common.pipeline.evaluate.batch import Evaluation
from monasca_common.pipeline.evaluate.gauges import EVALUATE, EvaluationMetrics
from monasca_common.pipeline.evaluate.settings import evaluate_settings
from monasca_common.pipeline.evaluate.transitions import TransitionPublisher
from monasca_common.pipeline.jobs import loop
from monasca_common.pipeline.jobs.activity import heartbeat
from monasca_common.pipeline.jobs.job import Job, JobProgress, JobRequest, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.jobs.resources import open_audit, open_offset_store
from monasca_common.pipeline.settings import spark_settings
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.rejected import dead_letter_topic
from monasca_common.pipeline.spark.session import spark_session
from monasca_common.runtime.envelopes import EnvelopeWriter


class EvaluateJob(Job):
    summary = "evaluates alarm definitions and publishes transitions of alarms"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = evaluate_settings(conf)
        self._spark = spark_settings(conf)

    def facts(self) -> Mapping[str, object]:
        settings = self._settings
        return {**settings.stream.facts(), "writes": settings.alarm_transitions_topic, "spark": self._spark.master}

    def run(self, request: JobRequest, watcher: JobWatcher) -> JobProgress:
        request.refuse_times("evaluate", "decided windows are not evaluated again")
        settings, stream = self._settings, self._settings.stream
        with contextlib.ExitStack() as stack:
            audit = stack.enter_context(open_audit(stream))
            offset_store = open_offset_store(stream, audit)
            topic = stack.enter_context(SourceTopic(stream.consumer))
            topic.check_topics(settings.alarm_transitions_topic, dead_letter_topic(stream))
            producer = stack.enter_context(open_producer(audited(stream.producer, audit)))
            gauges = EvaluationMetrics(stream.connection, stream.name)
            writer = None
            if settings.transitions_format == "avro" and stream.registry is not None:
                writer = EnvelopeWriter(stream.registry, "transitions", settings.alarm_transitions_topic)
            publisher = TransitionPublisher(offset_store, producer, settings.alarm_transitions_topic, writer)
            watched = stack.enter_context(served(EVALUATE, stream.status, watcher, gauges.registry, publisher.lost))
            stack.enter_context(heartbeat(stream.connection, [(stream.group, stream.topic)]))
            spark = stack.enter_context(spark_session(self._spark, "monasca-evaluate"))
            evaluation = Evaluation(spark, settings, topic, offset_store, publisher)
            return loop.run(evaluation.step, spark, stream.trigger_seconds, request, watched)
