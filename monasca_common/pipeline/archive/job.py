# SPDX-License-Identifier: Apache-2.0
"""Builds the job ``archive`` from its configuration."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping, Sequence

from oslo_config import cfg

from monasca_common.pipeline.archive.batch import Archiver
from monasca_common.pipeline.archive.settings import archive_settings
from monasca_common.pipeline.jobs import loop
from monasca_common.pipeline.jobs.activity import heartbeat
from monasca_common.pipeline.jobs.job import Job, JobProgress, JobRequest, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.jobs.resources import open_audit, open_offset_store
from monasca_common.pipeline.settings import spark_settings
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import check_installed, spark_session
from monasca_common.runtime.logs import joined, shown_url

LOG = logging.getLogger(__name__)


class ArchiveJob(Job):
    summary = "writes topics to Parquet files by the hour of each record's event time"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = archive_settings(conf)
        self._spark = spark_settings(conf)

    def facts(self) -> Mapping[str, object]:
        settings = self._settings
        reads = joined(f"{stream.topic} as {stream.group}" for stream in settings.streams)
        return {**settings.streams[0].facts(), "reads": reads, "into": shown_url(settings.location)}

    def run(self, request: JobRequest, watcher: JobWatcher) -> JobProgress:
        request.refuse_times("archive", "the option start sets the start of a new archive")
        check_installed()
        settings, first = self._settings, self._settings.streams[0]
        with contextlib.ExitStack() as stack:
            audit = stack.enter_context(open_audit(first))
            offset_store = open_offset_store(first, audit)
            topics = [stack.enter_context(SourceTopic(stream.consumer)) for stream in settings.streams]
            for topic in topics:
                topic.check_topics(topic.name)
            watched = stack.enter_context(served("archive", first.status, watcher))
            sources = [(stream.group, stream.topic) for stream in settings.streams]
            stack.enter_context(heartbeat(first.connection, sources))
            spark = stack.enter_context(spark_session(self._spark, "monasca-archive"))
            archivers = [
                Archiver(spark, settings, stream, topic, offset_store)
                for stream, topic in zip(settings.streams, topics, strict=True)
            ]
            step = functools.partial(archive_all, archivers)
            return loop.run(step, spark, first.trigger_seconds, request, watched)


def archive_all(archivers: Sequence[Archiver]) -> JobProgress:
    """Run a step of each archiver. A topic that fails delays no other topic, whose records retention could otherwise
    remove. Raises the first error."""
    progress, errors = JobProgress(), list[Exception]()
    for archiver in archivers:
        try:
            progress = progress.plus(archiver.step())
        except Exception as error:
            errors.append(error)
    for other in errors[1:]:
        LOG.error("another topic also failed: %s", other)
    if errors:
        raise errors[0]
    return progress
