# SPDX-License-Identifier: Apache-2.0
"""Batch after batch: what passes is waited for, what does not ends the job with its reason."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from monasca_common.kafka.errors import TransportError, UndeliveredError
from monasca_common.kafka.retry import RetryPolicy
from monasca_common.pipeline.errors import (
    ArchiveUnavailable,
    Fenced,
    NotPublished,
    SparkFailed,
    SparkUnavailable,
    StagingLost,
)
from monasca_common.pipeline.jobs.base import Progress, Request, Watcher
from monasca_common.pipeline.spark.session import has_ended
from monasca_common.storage.errors import StorageUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)

UNDELIVERED = "undelivered_messages"
"""Who has this among its results is not done, whatever is read."""
_TRACE = "Traceback (most recent call last):"
RETRIES = RetryPolicy(attempts=5, backoff_seconds=0.5, max_backoff_seconds=30.0)


class Report(Protocol):
    """Of one batch. ``offsets``: accounted for; ``behind``: left."""

    @property
    def offsets(self) -> int: ...
    @property
    def behind(self) -> int: ...
    def results(self) -> dict[str, int]: ...


def run(
    step: Callable[[], Report], spark: SparkSession, trigger_seconds: float, request: Request, watcher: Watcher
) -> Progress:
    """``step`` again and again, until the watcher stops it, or, ``once``, until nothing is left.

    A failure that passes is waited for; ``once``, five in a row are the end.
    """
    done, failures, results = 0, 0, dict[str, int]()
    progress = Progress(0, 0, 0.0)
    while not watcher.stop.is_set():
        began = time.monotonic()
        try:
            report = step()
        except Fenced as error:
            LOG.warning("%s; reading on from what is stored", error)
            watcher.stop.wait(RETRIES.delay(1, random.random()))
            continue
        except passing_errors() as error:
            failures += 1
            if has_ended(spark):
                raise SparkUnavailable(f"Spark has ended under the job, start it again: {first_line(error)}") from error
            if request.once and RETRIES.exhausted(failures):
                raise
            rest = RETRIES.delay(failures, random.random())
            LOG.error("a batch failed and is computed again in %.1f s: %s", rest, first_line(error))
            watcher.stop.wait(rest)
            continue
        undelivered = report.results().get(UNDELIVERED, 0)
        failures = failures + 1 if undelivered else 0
        done += report.offsets
        for name, count in report.results().items():
            results[name] = results.get(name, 0) + count
        spent = time.monotonic() - began
        progress = Progress(done, report.behind, spent, dict(results))
        watcher.tell(progress)
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
    """What may be over when it is tried again."""
    ours = (TransportError, UndeliveredError, StorageUnavailable, ArchiveUnavailable, StagingLost)
    return (*ours, *_spark_errors())


@contextlib.contextmanager
def spark_told() -> Iterator[None]:
    """For what ends a job: what Spark says in pages of Java is told in a line, by `SparkFailed`."""
    try:
        yield
    except _spark_errors() as error:
        raise SparkFailed(f"Spark has failed: {first_line(error)}") from error


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError, ConnectionError)  # the last: of a Spark that has died


def first_line(error: BaseException) -> str:
    """Of an error in a task, what Python said there: Spark tells it far below its own, and its causes before it."""
    lines = str(error).splitlines()
    traces = [number for number, line in enumerate(lines) if line.endswith(_TRACE)]
    if traces:
        lines = [line for line in lines[traces[-1] + 1 :] if not line.startswith(" ")]  # frames are indented
    return next(filter(None, lines), type(error).__name__)
