# SPDX-License-Identifier: Apache-2.0
"""Builds the job ``replay`` from its configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from oslo_config import cfg

from monasca_common.audit.settings import audit_settings
from monasca_common.kafka import entry_point, load_admin
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.archive.reader import Archive, Selection
from monasca_common.pipeline.jobs.job import Job, JobProgress, JobRequest, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.replay.batch import replay
from monasca_common.pipeline.replay.senders import MatchingCount, Send, ToKafka, ToStorage
from monasca_common.pipeline.replay.settings import KafkaTarget, StorageTarget, replay_settings
from monasca_common.pipeline.settings import spark_settings
from monasca_common.pipeline.spark import worker_producer
from monasca_common.pipeline.spark.session import check_installed, spark_session
from monasca_common.runtime.logs import shown_url
from monasca_common.storage.base import Capability
from monasca_common.storage.plugins import DRIVERS

LOG = logging.getLogger(__name__)

_SECONDS = 10.0
_APPLICATION = "spark-replay"  # the job's name in audits


class ReplayJob(Job):
    summary = "sends archived messages to Kafka or to storage; only counts them without --execute"

    ends = True
    unit = "files"
    executes = True

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._settings = replay_settings(conf)
        self._spark = spark_settings(conf)

    def facts(self) -> Mapping[str, object]:
        target = self._settings.target
        return {
            "reads": self._settings.topic,
            "from_archive": shown_url(self._settings.location),
            "to": f"topic {target.topic}" if isinstance(target, KafkaTarget) else shown_url(target.storage.connection),
        }

    def run(self, request: JobRequest, watcher: JobWatcher) -> JobProgress:
        request.check_times()
        check_installed()
        settings = self._settings
        selection = Selection(request.from_ms, request.to_ms)
        archive = Archive(settings.location, settings.topic, selection)
        send: Send = self._sender(archive) if request.execute else MatchingCount(archive)
        with spark_session(self._spark, "monasca-replay") as spark:
            tasks = spark.sparkContext.defaultParallelism
            if isinstance(send, ToStorage):
                driver = entry_point(DRIVERS, send.storage.driver, option="driver in group [storage]")
                tasks = tasks if Capability.MANY_WRITERS in driver.capabilities else 1
            with served("replay", settings.status, watcher) as watched:
                progress = replay(spark, send, watched, tasks=tasks)
        if not request.execute:
            LOG.warning("no message was sent: add --execute to send the counted messages")
        return progress

    def _sender(self, archive: Archive) -> Send:
        target = self._settings.target
        if isinstance(target, StorageTarget):
            return ToStorage(archive, target.kind, target.storage, target.registry)
        # The broker might otherwise silently create the topic with one partition.
        if target.topic not in load_admin(self._conf).topic_ids([target.topic], _SECONDS):
            raise ConfigurationError(f"topic {target.topic!r} does not exist: create it")
        audit = audit_settings(self._conf)
        return ToKafka(archive, target.topic, worker_producer.portable_producer(target.producer, audit, _APPLICATION))
