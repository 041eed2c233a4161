# SPDX-License-Identifier: Apache-2.0
"""Runs batch after batch: waits while an error is retriable, and ends the job with the reason of any other."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from monasca_common.kafka import RetryPolicy
from monasca_common.kafka.errors import TransportError, UndeliveredError
from monasca_common.pipeline.errors import (
    ArchiveUnavailable,
    Fenced,
    NotPublished,
    SparkUnavailable,
    StagingLost,
)
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.jobs.job import JobProgress, JobRequest, JobWatcher
from monasca_common.pipeline.spark.session import has_ended, reason, spark_errors
from monasca_common.storage.errors import StorageUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)

UNDELIVERED = "undelivered_messages"
"""A job with this among its results is not done, even if it has read everything."""
RETRIES = RetryPolicy(attempts=5, backoff_seconds=0.5, max_backoff_seconds=30.0)


class Report(Protocol):
    """The result of one batch. ``offsets``: how many are accounted for; ``behind``: how many are left;
    ``stage_seconds`` and ``lags``: see `JobProgress`."""

    @property
    def offsets(self) -> int: ...
    @property
    def behind(self) -> int: ...
    @property
    def stage_seconds(self) -> Mapping[str, float]: ...
    @property
    def lags(self) -> tuple[PartitionLag, ...]: ...
    def results(self) -> dict[str, int]: ...


def run(
    step: Callable[[], Report], spark: SparkSession, trigger_seconds: float, request: JobRequest, watcher: JobWatcher
) -> JobProgress:
    """Repeat ``step`` until the watcher stops it, or, with ``once``, until nothing is left.

    A retriable failure is waited for; with ``once``, five in a row end the job.
    """
    done, failures, results = 0, 0, dict[str, int]()
    progress = JobProgress(0, 0, 0.0)
    while not watcher.stop.is_set():
        began = time.monotonic()
        try:
            report = step()
        except Fenced as error:
            LOG.warning("%s; continuing from the stored offsets", error)
            watcher.turned(str(error))
            watcher.stop.wait(RETRIES.delay(1, random.random()))
            continue
        except passing_errors() as error:
            failures += 1
            LOG.debug("a batch failed:\n%s", error)
            if has_ended(spark):
                raise SparkUnavailable(f"Spark has ended under the job, start it again: {reason(error)}") from error
            if request.once and RETRIES.exhausted(failures):
                raise
            rest = RETRIES.delay(failures, random.random())
            LOG.error("a batch failed and is computed again in %.1f s: %s", rest, reason(error))
            watcher.turned(f"a batch failed: {reason(error)}")
            watcher.stop.wait(rest)
            continue
        undelivered = report.results().get(UNDELIVERED, 0)
        failures = failures + 1 if undelivered else 0
        done += report.offsets
        for name, count in report.results().items():
            results[name] = results.get(name, 0) + count
        spent = time.monotonic() - began
        progress = JobProgress(done, report.behind, spent, dict(results), report.stage_seconds, report.lags)
        watcher.tell(progress)
        watcher.turned("")
        if request.once and not report.behind:
            if not undelivered:
                break
            if RETRIES.exhausted(failures):
                raise NotPublished(f"{undelivered} messages are not acknowledged: they are published by the next run")
            watcher.stop.wait(RETRIES.delay(failures, random.random()))
        elif not report.behind:
            watcher.stop.wait(max(0.0, trigger_seconds - spent))
    return progress


def passing_errors() -> tuple[type[Exception], ...]:
    """The retriable errors."""
    ours = (TransportError, UndeliveredError, StorageUnavailable, ArchiveUnavailable, StagingLost)
    return (*ours, *spark_errors())
