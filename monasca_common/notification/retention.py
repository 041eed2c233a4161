# SPDX-License-Identifier: Apache-2.0
"""Removes rows of the ledger and silences that are older than the retention, so that their tables stay bounded."""

from __future__ import annotations

import logging

from monasca_common.alarms.silence_tables import Silences
from monasca_common.kafka import MessagingError
from monasca_common.kafka.clock import Clock
from monasca_common.notification.ledger import ROWS_A_PORTION, Ledger
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.restarts import Loop
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

_EVERY_SECONDS = 3600.0
_TURN_SECONDS = 60.0
# Between two portions, for those that write notifications in the meantime: SQLite has one writer at a time.
_PAUSE_SECONDS = 0.1


class LedgerRetention(Loop):
    """Applies the retention at the start and once an hour until `stop`. Each process does; they need not agree."""

    name = "retention"
    expected = (MessagingError, StorageError)

    def __init__(self, ledger: Ledger, silences: Silences, clock: Clock, kept_ms: int) -> None:
        super().__init__("removing old rows of the ledger", clock)
        self.health = LoopHealth(self.name, clock, trouble="")
        self._ledger = ledger
        self._silences = silences
        self._kept_ms = kept_ms

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
        before_ms = self.clock.time_ms() - self._kept_ms
        removed = portion = self._ledger.prune(before_ms)
        while portion == ROWS_A_PORTION and not self.stopping.wait(_PAUSE_SECONDS):
            self.health.turned()
            portion = self._ledger.prune(before_ms)
            removed += portion
        self._silences.prune(before_ms)
        if removed:
            LOG.info("removed %d old rows of the ledger", removed)
