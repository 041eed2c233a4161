# SPDX-License-Identifier: Apache-2.0
"""What a job is, and how one is found by its name."""

from __future__ import annotations

import importlib.metadata
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from oslo_config import cfg

from monasca_common.kafka.entry_points import entry_point

JOBS = "monasca_common.pipeline.jobs"


@dataclass(frozen=True, slots=True)
class Request:
    """``once``: end when all is done that there was at the start. ``from_ms`` and ``to_ms``: event times, the second
    not included. ``execute``: do what is only told else, where a job asks for it."""

    once: bool = False
    from_ms: int | None = None
    to_ms: int | None = None
    execute: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Of a run so far. ``done`` and ``left``: offsets. ``results``: what the job counts, by name."""

    done: int
    left: int
    batch_seconds: float
    results: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who runs a job: asks it to stop, and hears how far it is."""

    stop: threading.Event = field(default_factory=threading.Event)
    tell: Callable[[Progress], None] = lambda _: None


class Job(ABC):
    """Made from configuration, which it checks. ``summary``: one line for ``pipeline list``.

    ``ends``: whether it comes to an end without being asked to.
    """

    summary: ClassVar[str]
    ends: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, conf: cfg.ConfigOpts) -> None: ...

    @abstractmethod
    def run(self, request: Request, watcher: Watcher) -> Progress:
        """Until it is done, or asked to stop. Raises `PipelineError`, and the errors of Kafka and of storage."""


def job_names() -> list[str]:
    return sorted(importlib.metadata.entry_points(group=JOBS).names)


def load_job(name: str, conf: cfg.ConfigOpts) -> Job:
    """Raises `ConfigurationError`: an unknown name, or options that are refused."""
    return job_class(name)(conf)


def job_class(name: str) -> type[Job]:
    return entry_point(JOBS, name, option="job")  # type: ignore[no-any-return]
