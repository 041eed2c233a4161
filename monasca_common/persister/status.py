# SPDX-License-Identifier: Apache-2.0
"""The status of one consumer of a persister, for people, probes and graphs."""

from __future__ import annotations

import enum
import logging
import threading
from bisect import bisect_left
from collections.abc import Mapping

import msgspec
from msgspec import structs

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import TopicPartition
from monasca_common.storage.base import Kind, Written

LOG = logging.getLogger(__name__)

_MAX_REASON = 500
#: The upper bounds of the classes that writes are counted in, in seconds; another class has what is above.
WRITE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class MemberState(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING_FOR_DATABASE = "waiting for the database"
    WAITING_FOR_KAFKA = "waiting for Kafka"
    FAILED = "failed"
    STOPPED = "stopped"


_AT_WORK = (MemberState.RUNNING, MemberState.WAITING_FOR_DATABASE, MemberState.WAITING_FOR_KAFKA)


class Status(msgspec.Struct):
    """The status of one consumer. Times are in ms since the epoch, durations in seconds.

    The counters only grow, also across restarts of the consumer; ``stored`` to ``skipped`` are those of `Written`.
    ``write_classes``: how many writes took so long, by `WRITE_SECONDS`.
    """

    worker: str
    kind: Kind
    pid: int = 0
    state: MemberState = MemberState.STARTING
    reason: str = ""  # why it is not running
    since_ms: int = 0  # when the state began
    written_ms: int | None = None  # the last write
    told_ms: int = 0  # when this was reported
    lag: dict[str, int] = {}
    stored: int = 0
    repeated: int = 0
    conflicting: int = 0
    skipped: int = 0
    dead_letters: int = 0
    writes: int = 0
    write_seconds: float = 0.0
    write_classes: list[int] = msgspec.field(default_factory=lambda: [0] * (len(WRITE_SECONDS) + 1))
    unavailable_seconds: float = 0.0
    restarts: int = 0
    turned_ms: int = 0  # when its loop last turned; 0: it has none now
    moved_ms: int = 0  # when it last got on, or had read everything
    partitions: int = 0  # how many it owns


class MemberStatus:
    """Keeps the `Status` of one member up to date: its threads write, one thread reports. Thread-safe."""

    def __init__(self, status: Status, clock: Clock) -> None:
        self.name = status.worker
        self._clock = clock
        self._lock = threading.Lock()
        self._status = structs.replace(status, write_classes=list(status.write_classes))
        self._away_since: float | None = None  # monotonic; accounted for until then
        self._database_error = ""
        self._kafka_error = ""
        self._done: dict[TopicPartition, int] = {}  # next offsets
        self._has_moved = True

    def begin(self) -> None:
        """Begin an attempt."""
        with self._lock:
            self._enter(MemberState.RUNNING, "")
            self._look()

    def done(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that everything before these offsets is stored or a dead letter."""
        with self._lock:
            self._done |= offsets
            self._has_moved = True

    def wrote(self, written: Written, seconds: float) -> None:
        with self._lock:
            status = self._status
            status.written_ms = self._clock.time_ms()
            status.stored += written.stored
            status.repeated += written.repeated
            status.conflicting += written.conflicting
            status.skipped += written.skipped
            status.writes += 1
            status.write_seconds += seconds
            status.write_classes[bisect_left(WRITE_SECONDS, seconds)] += 1
        self.available()

    def dead_letter(self) -> None:
        with self._lock:
            self._status.dead_letters += 1

    def unavailable(self, error: Exception) -> None:
        """Note that the database is unavailable."""
        with self._lock:
            news = self._away_since is None
            if news:
                self._away_since = self._clock.monotonic()
            self._database_error = str(error)
            self._look()
        if news:
            LOG.warning("%s waits for the database, and keeps its partitions: %s", self.name, error)

    def available(self) -> None:
        """Note that the database is available."""
        if self._away_since is None:
            return
        with self._lock:
            self._count_time_away()
            self._away_since, self._database_error = None, ""
            self._look()
        LOG.info("%s: the database is back", self.name)

    def kafka(self, error: Exception | None) -> None:
        """Note the result of a request to Kafka; ``None``: it answered."""
        with self._lock:
            self._kafka_error = "" if error is None else str(error)
            self._look()

    def enter(self, state: MemberState, reason: str = "") -> None:
        with self._lock:
            self._enter(state, reason)

    def restarted(self) -> None:
        with self._lock:
            self._status.restarts += 1

    def report(
        self, ends: Mapping[TopicPartition, int], *, partitions: int = 0, turn_seconds: float | None = None
    ) -> Status:
        """The current status. ``ends``: the end of the log of each owned partition. ``turn_seconds``: how long ago its
        loop has turned."""
        with self._lock:
            self._count_time_away()
            lag = {f"{tp.topic}/{tp.partition}": max(0, end - self._done.get(tp, end)) for tp, end in ends.items()}
            now_ms = self._clock.time_ms()
            if self._has_moved or not any(lag.values()):
                self._status.moved_ms = now_ms
            self._has_moved = False
            return structs.replace(
                self._status,
                told_ms=now_ms,
                turned_ms=0 if turn_seconds is None else now_ms - round(turn_seconds * 1000),
                partitions=partitions,
                lag=lag,
                write_classes=list(self._status.write_classes),
            )

    def _count_time_away(self) -> None:
        if self._away_since is None:
            return
        now = self._clock.monotonic()
        self._status.unavailable_seconds += now - self._away_since
        self._away_since = now

    def _look(self) -> None:
        if self._status.state not in _AT_WORK:
            return
        if self._database_error:
            self._enter(MemberState.WAITING_FOR_DATABASE, self._database_error)
        elif self._kafka_error:
            self._enter(MemberState.WAITING_FOR_KAFKA, self._kafka_error)
        else:
            self._enter(MemberState.RUNNING, "")

    def _enter(self, state: MemberState, reason: str) -> None:
        if state is not self._status.state:
            self._status.since_ms = self._clock.time_ms()
        self._status.state, self._status.reason = state, reason[:_MAX_REASON]
