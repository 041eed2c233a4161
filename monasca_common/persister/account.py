# SPDX-License-Identifier: Apache-2.0
"""What one consumer of a persister has done, and how it is: for people, probes and graphs."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import TopicPartition
from monasca_common.storage.base import Kind, Written

LOG = logging.getLogger(__name__)

_MAX_REASON = 500


class State(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING_FOR_DATABASE = "waiting for the database"
    WAITING_FOR_KAFKA = "waiting for Kafka"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Counters:
    """Ever growing, across restarts of a consumer. Those of rows are `Written`'s; times in seconds."""

    stored: int = 0
    repeated: int = 0
    conflicting: int = 0
    skipped: int = 0
    dead_letters: int = 0
    writes: int = 0
    write_seconds: float = 0.0
    unavailable_seconds: float = 0.0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """One consumer at one moment. ``lag`` in messages, by ``topic/partition``; times in ms since the epoch."""

    worker: str
    kind: Kind
    pid: int = 0
    state: State = State.STARTING
    reason: str = ""  # why it is not running
    since_ms: int = 0  # when the state began
    written_ms: int | None = None  # the last write
    told_ms: int = 0  # when this was told
    lag: Mapping[str, int] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)


class Account:
    """Written by a consumer's threads, read by whoever tells its status. Thread-safe."""

    def __init__(self, status: Status, clock: Clock) -> None:
        self.name = status.worker
        self._clock = clock
        self._lock = threading.Lock()
        self._status = status
        self._away_since: float | None = None  # monotonic; accounted for until then
        self._database_error = ""
        self._kafka_error = ""
        self._on_failure: Callable[[], object] = lambda: None
        self._done: dict[TopicPartition, int] = {}  # next offsets
        self.failure: Exception | None = None

    def begin(self, on_failure: Callable[[], object]) -> None:
        """A new attempt. ``on_failure`` is called, once, when there is what neither trying again nor waiting cures."""
        with self._lock:
            self.failure, self._on_failure = None, on_failure
            self._enter(State.RUNNING, "")
            self._look()

    def done(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Everything before these offsets is stored or a dead letter."""
        with self._lock:
            self._done |= offsets

    def wrote(self, written: Written, seconds: float) -> None:
        with self._lock:
            counters = self._status.counters
            self._status = replace(
                self._status,
                written_ms=self._clock.time_ms(),
                counters=replace(
                    counters,
                    stored=counters.stored + written.stored,
                    repeated=counters.repeated + written.repeated,
                    conflicting=counters.conflicting + written.conflicting,
                    skipped=counters.skipped + written.skipped,
                    writes=counters.writes + 1,
                    write_seconds=counters.write_seconds + seconds,
                ),
            )
        self.available()

    def dead_letter(self) -> None:
        with self._lock:
            counters = self._status.counters
            self._status = replace(self._status, counters=replace(counters, dead_letters=counters.dead_letters + 1))

    def unavailable(self, error: Exception) -> None:
        """The database cannot do it now."""
        with self._lock:
            news = self._away_since is None
            if news:
                self._away_since = self._clock.monotonic()
            self._database_error = str(error)
            self._look()
        if news:
            LOG.warning("%s waits for the database, and keeps its partitions: %s", self.name, error)

    def available(self) -> None:
        """The database did what it was asked."""
        if self._away_since is None:
            return
        with self._lock:
            self._count_time_away()
            self._away_since, self._database_error = None, ""
            self._look()
        LOG.info("%s: the database is back", self.name)

    def kafka(self, error: Exception | None) -> None:
        """What asking Kafka came to; ``None``: it answered."""
        with self._lock:
            self._kafka_error = "" if error is None else str(error)
            self._look()

    def fail(self, error: Exception) -> None:
        with self._lock:
            first, self.failure = self.failure is None, self.failure or error
            on_failure = self._on_failure
        if first:
            on_failure()

    def enter(self, state: State, reason: str = "") -> None:
        with self._lock:
            self._enter(state, reason)

    def restarted(self) -> None:
        with self._lock:
            counters = self._status.counters
            self._status = replace(self._status, counters=replace(counters, restarts=counters.restarts + 1))

    def status(self, ends: Mapping[TopicPartition, int]) -> Status:
        """``ends``: where the log of each owned partition ends."""
        with self._lock:
            self._count_time_away()
            lag = {f"{tp.topic}/{tp.partition}": max(0, end - self._done.get(tp, end)) for tp, end in ends.items()}
            self._status = replace(self._status, told_ms=self._clock.time_ms(), lag=lag)
            return self._status

    def _count_time_away(self) -> None:
        if self._away_since is None:
            return
        now = self._clock.monotonic()
        counters = self._status.counters
        seconds = counters.unavailable_seconds + now - self._away_since
        self._away_since = now
        self._status = replace(self._status, counters=replace(counters, unavailable_seconds=seconds))

    def _look(self) -> None:
        if self._status.state not in (State.RUNNING, State.WAITING_FOR_DATABASE, State.WAITING_FOR_KAFKA):
            return
        if self._database_error:
            self._enter(State.WAITING_FOR_DATABASE, self._database_error)
        elif self._kafka_error:
            self._enter(State.WAITING_FOR_KAFKA, self._kafka_error)
        else:
            self._enter(State.RUNNING, "")

    def _enter(self, state: State, reason: str) -> None:
        since_ms = self._status.since_ms if state is self._status.state else self._clock.time_ms()
        self._status = replace(self._status, state=state, reason=reason[:_MAX_REASON], since_ms=since_ms)
