# SPDX-License-Identifier: Apache-2.0
"""Counts delivered messages by topic and by buckets of event time, for audits.

The event time of a message is the timestamp of its record. The client counts what it reports; see `Outcomes`.
"""

from __future__ import annotations

import threading

from monasca_common.kafka.transport.base import DeliveryCount, DeliveryCounts


class DeliveryCounter:
    """What was delivered since the last `take`; what is delivered in a transaction counts once that is committed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counts: DeliveryCounts = {}
        self._held: DeliveryCounts | None = None  # of a transaction that is open

    def add(self, counts: DeliveryCounts) -> None:
        with self._lock:
            _add(self._counts if self._held is None else self._held, counts)

    def take(self) -> DeliveryCounts:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
            return counts

    def begin(self) -> None:
        """A transaction begins."""
        with self._lock:
            self._held = {}

    def end(self, *, committed: bool) -> None:
        with self._lock:
            if committed:
                _add(self._counts, self._held or {})
            self._held = None


def _add(to: DeliveryCounts, counts: DeliveryCounts) -> None:
    for key, count in counts.items():
        total = to.setdefault(key, DeliveryCount())
        total.messages += count.messages
        total.bytes += count.bytes
        total.delay_ms += count.delay_ms
        total.max_delay_ms = max(total.max_delay_ms, count.max_delay_ms)
