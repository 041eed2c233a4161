# SPDX-License-Identifier: Apache-2.0
"""Removes rows of the ledger and silences that are older than the retention, so that their tables stay bounded."""

from __future__ import annotations

import logging
import threading

from monasca_common.alarms.silence_tables import Silences
from monasca_common.kafka.clock import Clock
from monasca_common.notification.ledger import ROWS_A_PORTION, NoticeLedger
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

_EVERY_SECONDS = 3600.0
# Between two portions, for those who write notifications meanwhile: SQLite has one writer at a time.
_PAUSE_SECONDS = 0.1


class LedgerRetention:
    """Applies the retention at the start and once an hour until `stop`. Each process does; they need not agree."""

    def __init__(self, ledger: NoticeLedger, silences: Silences, clock: Clock, kept_ms: int) -> None:
        self._ledger = ledger
        self._silences = silences
        self._clock = clock
        self._kept_ms = kept_ms
        self._stopping = threading.Event()

    def run(self) -> None:
        """Raises nothing: an unavailable database is asked again an hour later."""
        while not self._stopping.is_set():
            try:
                self._apply()
            except StorageError as error:
                LOG.warning("old rows of the ledger were not removed: %s", error)
            except Exception:
                LOG.exception("old rows of the ledger were not removed")
            self._stopping.wait(_EVERY_SECONDS)

    def stop(self) -> None:
        """Returns at once; `run` ends after the portion that it is removing."""
        self._stopping.set()

    def _apply(self) -> None:
        before_ms = self._clock.time_ms() - self._kept_ms
        removed = portion = self._ledger.prune(before_ms)
        while portion == ROWS_A_PORTION and not self._stopping.wait(_PAUSE_SECONDS):
            portion = self._ledger.prune(before_ms)
            removed += portion
        self._silences.prune(before_ms)
        if removed:
            LOG.info("removed %d old rows of the ledger", removed)
