# SPDX-License-Identifier: Apache-2.0
"""Removes rows of the ledger and silences after their retention time."""

from __future__ import annotations

import logging

from monasca_common.alarms.silences import Silences
from monasca_common.kafka import MessagingError
from monasca_common.kafka.clock import Clock
from monasca_common.notification.ledger import ROWS_A_PORTION, Ledger
from monasca_common.notification.worker_loop import WorkerLoop
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

_REST_SECONDS = 300.0
# A pause between two portions lets other processes write, because SQLite permits one writer at a time.
_PAUSE_SECONDS = 0.1


class LedgerRetention(WorkerLoop):
    """Applies the retention until `stop`, in each process independently."""

    expected = (MessagingError, StorageError)

    def __init__(
        self, ledger: Ledger, silences: Silences, clock: Clock, retention_ms: int, status: MemberStatus
    ) -> None:
        super().__init__("the retention of the ledger", clock, status, reason="")
        self._ledger = ledger
        self._silences = silences
        self._retention_ms = retention_ms

    def serve(self) -> None:
        while not self.stopping.is_set():
            self.health.turned()
            before_ms = self.clock.time_ms() - self._retention_ms
            removed = self._ledger.prune(before_ms)
            self._silences.prune(before_ms)
            self.health.turned("")
            if removed:
                LOG.info("removed %d old rows of the ledger", removed)
            self.stopping.wait(_PAUSE_SECONDS if removed == ROWS_A_PORTION else _REST_SECONDS)
