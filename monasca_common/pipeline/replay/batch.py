# SPDX-License-Identifier: Apache-2.0
"""Replays a time range from the archive, a few files at a time."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.archive import layout, reader
from monasca_common.pipeline.archive.reader import Archive
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.errors import ReplayFailed
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.replay.senders import Send
from monasca_common.pipeline.spark.session import reason, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
_FILES_A_TASK = 4  # the number is small, so that tasks do not wait long for the slowest task


class Replay:
    """Replays the selected files. ``tasks``: the number of files read concurrently."""

    def __init__(
        self, spark: SparkSession, archive: Archive, send: Send, *, tasks: int, clock: Clock | None = None
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._send = send
        self._tasks = tasks
        self._clock = clock or SystemClock()
        self._run_id = f"replay {uuid.uuid4().hex}"

    def run(self, watcher: JobWatcher) -> JobProgress:
        """Send files until all are sent or the watcher stops the run. ``done`` and ``left`` count files.

        Raises `ReplayFailed`, `ArchiveUnavailable`, `ConfigurationError` (the location has no archive of the topic).
        """
        store = Store(self._archive.location)
        paths = reader.find_files(store, self._archive.topic, self._archive.selection)
        if store.folders(layout.staging_folder(self._archive.topic)):
            LOG.warning(
                "a batch of the archive of %s is running, or was left by a crash: its records are not replayed until "
                "its files are in place; if the job archive is not running, run it once",
                self._archive.topic,
            )
        elif not paths:
            store.require_folder(layout.topic_folder(self._archive.topic))
        counts: Counter[str] = Counter()
        progress = JobProgress(0, len(paths))
        watcher.tell(progress)
        size = self._tasks * _FILES_A_TASK
        for start in range(0, len(paths), size):
            if watcher.stop.is_set():
                break
            began, some = self._clock.monotonic(), paths[start : start + size]
            for sent in self._sent(some):
                counts.update(sent)
            fail_point("replay.after_some")
            done, spent = start + len(some), self._clock.monotonic() - began
            progress = JobProgress(done, len(paths) - done, spent, dict(counts))
            watcher.tell(progress)
        return progress

    def _sent(self, paths: Sequence[str]) -> list[Counter[str]]:
        """Send these files. Spark repeats a task that fails, except with ``master = local``."""
        text = f"replay: {len(paths)} files of {self._archive.topic}"
        self._spark.sparkContext.setJobGroup(self._run_id, text)
        files = self._spark.sparkContext.parallelize(paths, min(len(paths), self._tasks))
        try:
            return files.map(self._send).collect()
        except spark_errors() as error:
            raise ReplayFailed(
                f"{reason(error)}; some of the selected messages were sent; run the replay again: it does not add "
                f"messages twice"
            ) from error
