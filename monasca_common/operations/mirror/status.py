# SPDX-License-Identifier: Apache-2.0
"""The metrics of a mirror, and whether it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from monasca_common.kafka.clock import Clock
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.runtime.health import LoopTurn, ServiceHealth, liveness, readiness

_PREFIX = "monasca_mirror"
_STALL_SECONDS = LagWindow().seconds


class MirrorStatus(Collector):
    """Counts of this process; any thread may ask. ``trouble``: why it does not copy now, empty while it does.
    ``refused``: topics that it cannot copy, with the reason."""

    def __init__(self, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self.trouble = "it has not begun"
        self.turn = LoopTurn(clock)
        self.refused: Mapping[str, str] = {}
        #: How many messages each topic is behind; asked for by each look.
        self.lag: Callable[[], Mapping[str, int]] = dict
        self._clock = clock
        self._moved_at = clock.monotonic()
        self._messages = self._counter("messages", "Messages that were copied", "topic")
        self._bytes = self._counter("bytes", "Bytes of keys, values and headers that were copied", "topic")
        self._transactions = self._counter("transactions", "Transactions in the target", "outcome")
        self._skipped = self._counter("skipped", "Offsets that retention deleted before they were copied", "topic")
        self._delay = Gauge(
            "delay_seconds",
            "The age of the last message of a topic when its copy was committed",
            ("topic",),
            namespace=_PREFIX,
            registry=self.registry,
        )
        self._copied = 0
        for outcome in ("committed", "failed"):
            self._transactions.labels(outcome)
        self.registry.register(self)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, (label,), namespace=_PREFIX, registry=self.registry)

    def begins(self, topics: Iterable[str]) -> None:
        """Copies of these topics. Their counters are served from 0: Prometheus sees no increase in a new series."""
        self._moved_at = self._clock.monotonic()
        for topic in topics:
            for counter in (self._messages, self._bytes, self._skipped):
                counter.labels(topic)

    @property
    def copied(self) -> int:
        return self._copied

    def committed(self, topic: str, messages: int, size: int, newest_ms: int | None) -> None:
        """Part of a transaction that was committed, of one topic."""
        self._copied += messages
        self._moved_at = self._clock.monotonic()
        self._messages.labels(topic).inc(messages)
        self._bytes.labels(topic).inc(size)
        if newest_ms is not None:
            self._delay.labels(topic).set(max(0.0, (self._clock.time_ms() - newest_ms) / 1000))

    def polled_nothing(self) -> None:
        """Which is no stall where nothing waits."""
        if not any(self.lag().values()):
            self._moved_at = self._clock.monotonic()

    def paced(self) -> None:
        """It waits because it was faster than it may be."""
        self.turn.turned()
        self._moved_at = self._clock.monotonic()

    def ended(self, outcome: str) -> None:
        self._transactions.labels(outcome).inc()

    def skipped(self, topic: str, offsets: int) -> None:
        self._skipped.labels(topic).inc(offsets)

    def describe(self) -> list[Metric]:
        return [_lag_family(), _up_family()]

    def collect(self) -> Iterator[Metric]:
        lag = _lag_family()
        for topic, messages in self.lag().items():
            lag.add_metric([topic], messages)
        yield lag
        up = _up_family()
        up.add_metric([], 0 if self.trouble else 1)
        yield up

    def probed(self) -> ServiceHealth:
        """Return what probes are told."""
        return ServiceHealth(
            "mirror",
            self.health,
            liveness(lambda: {"mirror": self.turn.seconds}),
            readiness(self._reasons),
        )

    def _reasons(self) -> Iterator[str]:
        if self.trouble:
            yield self.trouble
            return
        waiting, silent_seconds = sum(self.lag().values()), self._clock.monotonic() - self._moved_at
        if waiting and silent_seconds > _STALL_SECONDS:
            yield f"STALL: {waiting} messages wait, and none is copied for {silent_seconds:.0f} s"

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether every topic is copied, and what hinders it."""
        healthy = not self.trouble and not self.refused
        return healthy, {"healthy": healthy, "reason": self.trouble, "refused": dict(self.refused)}


def _lag_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_lag", "Messages that are to be copied", labels=["topic"])


def _up_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_copying", "1 while it copies, 0 while something hinders it")
