# SPDX-License-Identifier: Apache-2.0
"""A process that uses a core on request, to generate load for an alarm."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from monasca_common.devbroker.supervisor import ServerProcess, Supervisor

PROCESS_NAME = "quickstart-load"


class GeneratedLoad(ServerProcess):
    """A process that uses one core, or is stopped. It ends together with the supervisor."""

    def __init__(self, supervisor: Supervisor, log: Path) -> None:
        import psutil  # an extra

        super().__init__(supervisor, log)
        self.launch([sys.executable, "-S", "-c", "while True: pass", PROCESS_NAME])
        self.stop()
        self._process = psutil.Process(self.pid)
        self.percent()  # the first result is always 0

    def start(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def end(self) -> None:
        self.signal(signal.SIGKILL)

    def percent(self) -> float:
        """Return the percentage of one core used since the last call."""
        return float(self._process.cpu_percent())
