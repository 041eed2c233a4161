# SPDX-License-Identifier: Apache-2.0
"""Replays a time range from the archive, a few files at a time."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.archive import layout, reader
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.errors import ReplayFailed
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.replay.senders import Send
from monasca_common.pipeline.spark.session import reason, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
_FILES_A_TASK = 4  # the number is small, so that tasks do not wait long for the slowest task


def replay(spark: SparkSession, send: Send, watcher: JobWatcher, *, tasks: int) -> JobProgress:
    """Send the selected files of an archive until all are sent or the watcher stops the run. ``done`` and ``left``
    count files. ``tasks``: the number of files read concurrently.

    Raises `ReplayFailed`, `ArchiveUnavailable`, `ConfigurationError` (the location has no archive of the topic).
    """
    archive, run_id = send.archive, f"replay {uuid.uuid4().hex}"
    store = Store(archive.location)
    paths = reader.find_files(store, archive.topic, archive.selection)
    if store.folders(layout.staging_folder(archive.topic)):
        LOG.warning(
            "a batch of the archive of %s is running, or was left by a crash: its records are not replayed until "
            "its files are in place; if the job archive is not running, run it once",
            archive.topic,
        )
    elif not paths:
        store.require_folder(layout.topic_folder(archive.topic))
    counts: Counter[str] = Counter()
    progress = JobProgress(0, len(paths))
    watcher.tell(progress)
    size = tasks * _FILES_A_TASK
    for start in range(0, len(paths), size):
        if watcher.stop.is_set():
            break
        began, some = time.monotonic(), paths[start : start + size]
        spark.sparkContext.setJobGroup(run_id, f"replay: {len(some)} files of {archive.topic}")
        for sent in _sent(spark, send, some, tasks):
            counts.update(sent)
        fail_point("replay.after_some")
        done, spent = start + len(some), time.monotonic() - began
        progress = JobProgress(done, len(paths) - done, spent, dict(counts))
        watcher.tell(progress)
    return progress


def _sent(spark: SparkSession, send: Send, paths: Sequence[str], tasks: int) -> list[Counter[str]]:
    """Send these files. Spark repeats a task that fails, except with ``master = local``."""
    files = spark.sparkContext.parallelize(paths, min(len(paths), tasks))
    try:
        return files.map(send).collect()
    except spark_errors() as error:
        raise ReplayFailed(
            f"{reason(error)}; some of the selected messages were sent; run the replay again: it does not add "
            f"messages twice"
        ) from error
