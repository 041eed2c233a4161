# SPDX-License-Identifier: Apache-2.0
"""The metrics and the health of a mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from monasca_common.kafka.clock import Clock
from monasca_common.runtime.health import STALL_SECONDS, LoopHealth
from monasca_common.runtime.metrics import Sample, ServiceMetrics

_PREFIX = "monasca_mirror"


class MirrorStatus(ServiceMetrics):
    """Counts of this process, readable by any thread. ``health``: its liveness, and the reason if it does not copy now.
    ``refused``: the topics that it cannot copy, with the reasons."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(_PREFIX)
        self.health = LoopHealth("mirror", clock, more=self._unready)
        self.refused: Mapping[str, str] = {}
        #: Returns the number of messages left to copy by topic; called at each scrape.
        self.lag: Callable[[], Mapping[str, int]] = dict
        self._clock = clock
        self._moved_at = clock.monotonic()
        self._messages = self.counter("messages", "Copied messages", "topic")
        self._bytes = self.counter("bytes", "Bytes of the copied keys, values and headers", "topic")
        self._transactions = self.counter(
            "transactions", "Transactions in the target", "outcome", known=("committed", "failed")
        )
        self._skipped = self.counter("skipped", "Offsets that retention deleted before they were copied", "topic")
        self._delay = self.gauge("delay_seconds", "Age of a topic's last message when its copy was committed", "topic")
        self.copied = 0
        self.computed_gauge("lag", "Messages that are not copied yet", "topic", samples=self._lags)
        text = "1 while the mirror copies; 0 while it cannot, with the reason in /healthcheck"
        self.computed_gauge("copying", text, samples=lambda: [((), not self.health.reason)])

    def begins(self, topics: Iterable[str]) -> None:
        """Start the counters of these topics at 0, because Prometheus cannot detect an increase in a new series."""
        self._moved_at = self._clock.monotonic()
        for topic in topics:
            for counter in (self._messages, self._bytes, self._skipped):
                counter.labels(topic)

    def committed(self, topic: str, messages: int, size: int, newest_ms: int | None) -> None:
        """Count the messages of one topic in a committed transaction."""
        self.copied += messages
        self._moved_at = self._clock.monotonic()
        self._messages.labels(topic).inc(messages)
        self._bytes.labels(topic).inc(size)
        if newest_ms is not None:
            self._delay.labels(topic).set(max(0.0, (self._clock.time_ms() - newest_ms) / 1000))

    def polled_nothing(self) -> None:
        """Record an empty poll, which is a stall only if messages remain to be copied."""
        if not any(self.lag().values()):
            self._moved_at = self._clock.monotonic()

    def ended(self, outcome: str) -> None:
        self._transactions.labels(outcome).inc()

    def skipped(self, topic: str, offsets: int) -> None:
        self._skipped.labels(topic).inc(offsets)

    def _lags(self) -> list[Sample]:
        return [((topic,), messages) for topic, messages in self.lag().items()]

    def _unready(self) -> Iterator[str]:
        yield from (f"topic {topic} is not copied: {reason}" for topic, reason in self.refused.items())
        waiting, silent_seconds = sum(self.lag().values()), self._clock.monotonic() - self._moved_at
        if waiting and silent_seconds > STALL_SECONDS and not self.health.reason:
            yield f"STALL: {waiting} messages left to copy, none copied for {silent_seconds:.0f} s"
