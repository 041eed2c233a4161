# SPDX-License-Identifier: Apache-2.0
"""The arguments and figures of a case. Each module of a case has a function ``run(job: Job) -> Figures``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Job:
    servers: str
    topic: str
    messages: int
    group: str = ""
    threads: int = 1
    bulk: int = 1  # messages in one HTTP request or one `publish`
    case: str = ""  # name of the case, if the module has several
    database: str = ""  # a SQLAlchemy URL
    installed: str = ""  # the path of the peer's program, or of the folder with its packages or jars


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. ``cpu_seconds``: includes the client's threads, child processes and database sessions."""

    messages: int  # number of messages within the measured time
    seconds: float
    cpu_seconds: float
    written: int = 0  # the number of records expected in the log
    rows: int | None = None  # the number of rows expected in the database
    next_offsets: int | None = None  # the sum over all partitions for a consumer that read all messages
    p50_ms: float | None = None  # percentiles of the latencies
    p99_ms: float | None = None

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.messages * 1e6


class Stopwatch:
    """Wall-clock and CPU time from its creation until `stop` or the end of the context."""

    def __init__(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = time.process_time() - self._cpu_began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Reading:
    """Measures a reader from the end of its first batch until it has read all messages."""

    def __init__(self, job: Job) -> None:
        self._messages = job.messages
        self._first = self.count = 0
        self._watch = Stopwatch()

    @property
    def left(self) -> int:
        return self._messages - self.count

    def add(self, messages: int) -> bool:
        """Count the messages of a batch. Return whether all messages are read."""
        self.count += messages
        if not self._first:
            self._first, self._watch = self.count, Stopwatch()
        if self.left <= 0:
            self._watch.stop()
        return self.left <= 0

    def figures(self, next_offsets: int) -> Figures:
        watch = self._watch
        return Figures(self.count - self._first, watch.seconds, watch.cpu_seconds, next_offsets=next_offsets)


def produced(job: Job, watch: Stopwatch, delivered: int, *, before: int) -> Figures:
    """Return the figures of a producer. ``before``: the number of messages that were sent before the measurement.
    Raises `RuntimeError` unless all messages of the job are acknowledged."""
    if delivered != job.messages:
        raise RuntimeError(f"{delivered} of {job.messages} were acknowledged")
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages + before)
