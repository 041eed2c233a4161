# SPDX-License-Identifier: Apache-2.0
"""The interface of a job, and the lookup of a job by name."""

from __future__ import annotations

import importlib.metadata
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from oslo_config import cfg

from monasca_common.kafka import entry_point
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.jobs.durations import PartitionLag

JOBS = "monasca_common.pipeline.jobs"
UNDELIVERED = "undelivered_messages"
"""The result that counts unacknowledged messages. With ``once``, a job succeeds only if all are acknowledged."""

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The parameters of a run. ``once``: end when all records that existed at the start are processed. ``from_ms``
    (inclusive) and ``to_ms`` (exclusive): event times. ``execute``: make the changes that the job otherwise only
    reports."""

    once: bool = False
    from_ms: int | None = None
    to_ms: int | None = None
    execute: bool = False

    def refuse_times(self, job: str, remedy: str) -> None:
        """Raise `ConfigurationError` if the request has times, because the job continues from its stored offsets."""
        if self.from_ms is not None or self.to_ms is not None:
            raise ConfigurationError(
                f"{job} continues from its stored offsets, and accepts neither --from nor --to: {remedy}"
            )

    def check_times(self) -> None:
        """Raise `ConfigurationError` unless ``from_ms`` is before ``to_ms``."""
        if self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms:
            raise ConfigurationError("--from must be earlier than --to")


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a run, or the result of one batch. ``done`` and ``left`` are in the job's unit. ``results``: the
    job's counts by name.

    ``batch_seconds``, ``stage_seconds`` (by stage) and ``lags`` (of partitions with a known lag) describe the last
    batch.
    """

    done: int = 0
    left: int = 0
    batch_seconds: float = 0.0
    results: Mapping[str, int] = field(default_factory=dict)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    lags: tuple[PartitionLag, ...] = ()

    def plus(self, other: JobProgress) -> JobProgress:
        """Add the progress of another part of the run."""
        return JobProgress(
            self.done + other.done,
            self.left + other.left,
            self.batch_seconds + other.batch_seconds,
            _sums(self.results, other.results),
            _sums(self.stage_seconds, other.stage_seconds),
            self.lags + other.lags,
        )


def _sums(one: Mapping[str, _Number], other: Mapping[str, _Number]) -> dict[str, _Number]:
    return {**one, **{name: one.get(name, 0) + number for name, number in other.items()}}


@dataclass(frozen=True, slots=True)
class JobWatcher:
    """Stops a job and receives its progress on behalf of the caller. ``turned`` is called after each turn of the job's
    loop with the reason for a failure (empty after success)."""

    stop: threading.Event = field(default_factory=threading.Event)
    tell: Callable[[JobProgress], None] = lambda _: None
    turned: Callable[[str], None] = lambda _: None


class Job(ABC):
    """A job, whose constructor checks the configuration. ``summary``: one line for ``pipeline list``. ``ends``: whether
    the job ends by itself. ``unit``: the unit of its progress. ``executes``: whether the job makes changes only if the
    request has ``execute``.
    """

    summary: ClassVar[str]
    ends: ClassVar[bool] = False
    unit: ClassVar[str] = "offsets"
    executes: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, conf: cfg.ConfigOpts) -> None: ...

    def facts(self) -> Mapping[str, object]:
        """Return the values to log at startup: topics, groups and database, without secrets."""
        return {}

    @abstractmethod
    def run(self, request: JobRequest, watcher: JobWatcher) -> JobProgress:
        """Run until the job has finished, or the watcher stops it. Raises `PipelineError`, and the errors of Kafka and
        storage."""


def job_names() -> list[str]:
    return sorted(importlib.metadata.entry_points(group=JOBS).names)


def load_job(name: str, conf: cfg.ConfigOpts) -> Job:
    """Return the job with this name. Raises `ConfigurationError` for an unknown name or invalid options."""
    return job_class(name)(conf)


def job_class(name: str) -> type[Job]:
    return entry_point(JOBS, name, option="job", extra="spark")  # type: ignore[no-any-return]
