# SPDX-License-Identifier: Apache-2.0
"""Adds up what audited producers delivered, by topic and by buckets of event time.

The event time of a message is the timestamp of its record. The producer's client counts what brokers acknowledge.
"""

from __future__ import annotations

import threading

from monasca_common.kafka.message import DeliveryCount, DeliveryCounts, DeliveryTap


class DeliveryTotals:
    """What all producers of a process delivered since the last `take`. Each producer has a `tap` of its own."""

    def __init__(self, bucket_seconds: int) -> None:
        self.bucket_seconds = bucket_seconds
        self._lock = threading.Lock()
        self._counts: DeliveryCounts = {}

    def tap(self) -> DeliveryTap:
        return _Tap(self)

    def add(self, counts: DeliveryCounts) -> None:
        with self._lock:
            _add(self._counts, counts)

    def take(self) -> DeliveryCounts:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
            return counts


class _Tap:
    """The tap of one producer. It holds the counts of an open transaction back until that is committed."""

    def __init__(self, totals: DeliveryTotals) -> None:
        self.bucket_seconds = totals.bucket_seconds
        self._totals = totals
        self._lock = threading.Lock()
        self._held: DeliveryCounts | None = None

    def add(self, counts: DeliveryCounts) -> None:
        with self._lock:
            if self._held is None:
                self._totals.add(counts)
            else:
                _add(self._held, counts)

    def begin(self) -> None:
        with self._lock:
            self._held = {}

    def end(self, *, committed: bool) -> None:
        with self._lock:
            if committed:
                self._totals.add(self._held or {})
            self._held = None


def _add(to: DeliveryCounts, counts: DeliveryCounts) -> None:
    for key, count in counts.items():
        total = to.setdefault(key, DeliveryCount())
        total.messages += count.messages
        total.bytes += count.bytes
        total.delay_ms += count.delay_ms
        total.max_delay_ms = max(total.max_delay_ms, count.max_delay_ms)
