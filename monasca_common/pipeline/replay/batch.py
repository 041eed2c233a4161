# SPDX-License-Identifier: Apache-2.0
"""Replays a past time from the archive, a few files at a time."""

from __future__ import annotations

import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from monasca_common.kafka import RetryPolicy
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.archive import layout, reader
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.errors import ReplayFailed
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.replay.senders import Archive, ReplayOutcome, Send
from monasca_common.pipeline.spark.description import described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
T = TypeVar("T")

RETRIES = RetryPolicy(attempts=4, backoff_seconds=0.5, max_backoff_seconds=10.0)


@dataclass(frozen=True, slots=True)
class _CountRecords:
    """Runs on an executor: counts the records of a file."""

    location: str = field(repr=False)

    def __call__(self, path: str) -> int:
        return reader.record_count(Store(self.location), path)


class Replay:
    """Replays the selected files. ``tasks``: how many files are read at once."""

    def __init__(
        self,
        spark: SparkSession,
        archive: Archive,
        send: Send,
        *,
        tasks: int,
        retries: RetryPolicy = RETRIES,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._send = send
        self._tasks = tasks
        self._retries = retries
        self._clock = clock or SystemClock()
        self._run_id = f"replay {uuid.uuid4().hex}"

    def run(self, watcher: JobWatcher) -> JobProgress:
        """Send until all is sent, or the watcher stops it. ``done`` and ``left`` count records of the files.

        Raises `ReplayFailed`, `ArchiveUnavailable`, `ConfigurationError` (the topic has no archive there).
        """
        store = Store(self._archive.location)
        files = reader.find_files(store, self._archive.topic, self._archive.selection)
        if store.folders(layout.staging_folder(self._archive.topic)):
            LOG.warning(
                "a batch of the archive of %s is under way, or was left by a crash: what it has is not replayed until "
                "it is in place; if no archive runs, run it once",
                self._archive.topic,
            )
        elif not files:
            store.require_folder(layout.topic_folder(self._archive.topic))
        paths = [file.path for file in files]
        counts = self._on_executors("numbers of records", _CountRecords(self._archive.location), paths)
        records = dict(zip(paths, counts, strict=True))
        total, done = sum(records.values()), 0
        outcome = ReplayOutcome()
        progress = JobProgress(0, total, 0.0)
        watcher.tell(progress)
        for some in _chunks(paths, self._tasks):
            if watcher.stop.is_set():
                break
            began = self._clock.monotonic()
            outcome = self._sent(some, outcome, watcher)
            fail_point("replay.after_some")
            done += sum(records[path] for path in some)
            spent = self._clock.monotonic() - began
            progress = JobProgress(done, total - done, spent, _results(outcome))
            watcher.tell(progress)
        return progress

    def _sent(self, paths: Sequence[str], before: ReplayOutcome, watcher: JobWatcher) -> ReplayOutcome:
        """The outcome of these files, added to ``before``. If a file fails and is sent again, its last outcome
        counts."""
        counts, hours = before.counts.copy(), before.hours.copy()
        attempt, left = 0, list(paths)
        while True:
            attempt += 1
            outcomes = self._on_executors("messages", self._send, left)
            failed = {path: each.failure for path, each in zip(left, outcomes, strict=True) if each.failure}
            for path, outcome in zip(left, outcomes, strict=True):
                if path not in failed:
                    counts.update(outcome.counts)
                    hours.update(outcome.hours)
            if not failed:
                return ReplayOutcome(counts, hours)
            reason = next(iter(failed.values()))
            if self._retries.exhausted(attempt) or watcher.stop.is_set():
                raise ReplayFailed(
                    f"{reason}; of what was wanted, a part is sent: run the replay again, which adds nothing twice"
                )
            LOG.warning("%s; it is sent again", reason)
            watcher.stop.wait(self._retries.delay(attempt, random.random()))
            left = list(failed)

    def _on_executors(self, what: str, task: Callable[[str], T], paths: Sequence[str]) -> list[T]:
        if not paths:
            return []
        text = f"replay: {what} of {len(paths)} files of {self._archive.topic}"
        with described(self._spark, self._run_id, text):
            return self._spark.sparkContext.parallelize(paths, min(len(paths), self._tasks)).map(task).collect()


def _chunks(paths: Sequence[str], tasks: int) -> list[Sequence[str]]:
    """Chunks of a few files per task, so that no task waits long for the slowest."""
    size = tasks * 4
    return [paths[start : start + size] for start in range(0, len(paths), size)]


def _results(outcome: ReplayOutcome) -> dict[str, int]:
    hours = {_hour_text(hour_ms): count for hour_ms, count in sorted(outcome.hours.items())}
    return dict(Counter(outcome.counts)) | hours


def _hour_text(hour_ms: int) -> str:
    return datetime.fromtimestamp(hour_ms // 1000, UTC).strftime("%Y-%m-%dT%H:00Z")
