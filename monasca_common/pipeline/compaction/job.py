# SPDX-License-Identifier: Apache-2.0
"""The job ``compact``, wired together from its configuration."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

from oslo_config import cfg

from monasca_common.pipeline.archive.batch import check_owner
from monasca_common.pipeline.archive.settings import archive_settings
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.compaction.batch import Compaction
from monasca_common.pipeline.jobs.job import Job, JobProgress, JobRequest, JobWatcher
from monasca_common.pipeline.settings import spark_settings
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.pipeline.spark.session import spark_session
from monasca_common.runtime import joined, shown_url


class CompactJob(Job):
    summary = "merges the small files of an archive; the archive may run at the same time"

    ends = True
    unit = "records"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = archive_settings(conf)
        self._spark = spark_settings(conf)

    def facts(self) -> Mapping[str, object]:
        topics = joined(stream.topic for stream in self._settings.streams)
        return {"of": topics, "in": shown_url(self._settings.location)}

    def run(self, request: JobRequest, watcher: JobWatcher) -> JobProgress:
        request.check_times()
        settings, first = self._settings, self._settings.streams[0]
        check_owner(Store(settings.location), first.group)
        offset_store = OffsetStore(first.connection)
        offset_store.check()
        total = JobProgress(0, 0, 0.0)
        with contextlib.ExitStack() as stack:
            spark = stack.enter_context(spark_session(self._spark, "monasca-compact"))
            for stream in settings.streams:
                source = Source(stream.group, stream.topic, None)
                compaction = Compaction(spark, settings, source, offset_store)
                total = total.plus(compaction.run(request.from_ms, request.to_ms, _beyond(total, watcher)))
        return total


def _beyond(before: JobProgress, watcher: JobWatcher) -> JobWatcher:
    """A watcher of one topic, which forwards its progress together with that of the topics before it."""
    stop: threading.Event = watcher.stop
    return JobWatcher(stop, lambda progress: watcher.tell(before.plus(progress)))
