# SPDX-License-Identifier: Apache-2.0
"""Removes rows of the ledger and silences after their retention."""

from __future__ import annotations

import logging

from monasca_common.alarms.silences import Silences
from monasca_common.kafka import MessagingError
from monasca_common.kafka.clock import Clock
from monasca_common.notification.ledger import ROWS_A_PORTION, Ledger
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.restarts import Loop
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

_EVERY_SECONDS = 3600.0
_TURN_SECONDS = 60.0
# Between two portions, so that others can write: SQLite has one writer at a time.
_PAUSE_SECONDS = 0.1


class LedgerRetention(Loop):
    """Applies the retention at the start and every hour until `stop`, in each process independently."""

    name = "retention"
    expected = (MessagingError, StorageError)

    def __init__(self, ledger: Ledger, silences: Silences, clock: Clock, retention_ms: int) -> None:
        super().__init__("the retention of the ledger", clock)
        self.health = LoopHealth(self.name, clock, reason="")
        self._ledger = ledger
        self._silences = silences
        self._retention_ms = retention_ms

    def failed(self, error: Exception) -> None:
        self.health.failed(error)

    def serve(self) -> None:
        due = self.clock.monotonic()
        while not self.stopping.is_set():
            self.health.turned()
            if self.clock.monotonic() >= due:
                self._apply()
                self.health.turned("")
                due = self.clock.monotonic() + _EVERY_SECONDS
            self.stopping.wait(_TURN_SECONDS)

    def _apply(self) -> None:
        before_ms = self.clock.time_ms() - self._retention_ms
        removed = portion = self._ledger.prune(before_ms)
        while portion == ROWS_A_PORTION and not self.stopping.wait(_PAUSE_SECONDS):
            self.health.turned()
            portion = self._ledger.prune(before_ms)
            removed += portion
        self._silences.prune(before_ms)
        if removed:
            LOG.info("removed %d old rows of the ledger", removed)
