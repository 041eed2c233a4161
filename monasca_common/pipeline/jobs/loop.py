# SPDX-License-Identifier: Apache-2.0
"""Runs a job's batches: retries a batch after a retriable error, and ends the job after any other error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from monasca_common.kafka.errors import RegistryUnavailable, TransportError, UndeliveredError
from monasca_common.pipeline.errors import (
    ArchiveUnavailable,
    Fenced,
    NotPublished,
    SparkUnavailable,
    StagingLost,
)
from monasca_common.pipeline.jobs.job import UNDELIVERED, JobProgress, JobRequest, JobWatcher
from monasca_common.pipeline.spark.session import has_ended, reason, spark_errors
from monasca_common.runtime.restarts import RESTARTS, Loop
from monasca_common.storage.errors import StorageUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)

# Maximum number of consecutive failures with ``once``. Their back-offs exceed the ten seconds (by default) after which
# an unknown schema id is rejected.
_MOST_FAILURES = 6


def run(
    step: Callable[[], JobProgress],
    spark: SparkSession,
    trigger_seconds: float,
    request: JobRequest,
    watcher: JobWatcher,
) -> JobProgress:
    """Repeat ``step`` until the watcher stops it, or, with ``once``, until no input remains. A retriable error is
    followed by a back-off; with ``once``, six consecutive errors end the job.
    """
    batches = _Batches(step, spark, trigger_seconds, request, watcher)
    batches.run()
    return batches.progress


class _Batches(Loop):
    def __init__(
        self,
        step: Callable[[], JobProgress],
        spark: SparkSession,
        trigger_seconds: float,
        request: JobRequest,
        watcher: JobWatcher,
    ) -> None:
        super().__init__("a batch")
        self.expected = retriable_errors()
        self.stopping = watcher.stop
        self.progress = JobProgress()
        self._step = step
        self._spark = spark
        self._trigger_seconds = trigger_seconds
        self._once = request.once
        self._watcher = watcher
        self._failures = 0  # in a row

    def serve(self) -> None:
        while not self.stopping.is_set():
            began = self.clock.monotonic()
            try:
                report = self._step()
            except Fenced as error:
                LOG.warning("%s; continuing from the stored offsets", error)
                self._watcher.turned(str(error))
                self.stopping.wait(RESTARTS.backoff_seconds)
                continue
            seconds = self.clock.monotonic() - began
            self._add(report, seconds)
            undelivered = report.results.get(UNDELIVERED, 0)
            if not undelivered:
                self._failures = 0
            if report.left:
                continue
            if self._once:
                if undelivered:
                    raise NotPublished(f"{undelivered} messages are not acknowledged; the next run publishes them")
                self.finished = True
                return
            self.stopping.wait(max(0.0, self._trigger_seconds - seconds))

    def _add(self, report: JobProgress, seconds: float) -> None:
        """Add the result of a batch to the progress."""
        total = self.progress.plus(report)
        self.progress = replace(report, done=total.done, results=total.results, batch_seconds=seconds)
        self._watcher.tell(self.progress)
        self._watcher.turned("")

    def explained(self, error: Exception) -> str:
        if not isinstance(error, self.expected):
            raise error
        self._failures += 1
        LOG.debug("a batch failed:\n%s", error)
        if has_ended(self._spark):
            raise SparkUnavailable(f"Spark has ended during the job; start the job again: {reason(error)}") from error
        if self._once and self._failures >= _MOST_FAILURES:
            raise error
        return reason(error)

    def failed(self, error: Exception) -> None:
        self._watcher.turned(f"a batch failed: {reason(error)}")


def retriable_errors() -> tuple[type[Exception], ...]:
    kafka = (TransportError, UndeliveredError, RegistryUnavailable)
    return (*kafka, StorageUnavailable, ArchiveUnavailable, StagingLost, NotPublished, *spark_errors())
