# SPDX-License-Identifier: Apache-2.0
"""One node of a cluster: a JVM that can be started, stopped, killed and frozen."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from monasca_common.devbroker import ports
from monasca_common.devbroker.errors import BrokerFailed, BrokerTooSlow
from monasca_common.devbroker.properties import NodePorts
from monasca_common.devbroker.supervisor import Supervisor

START_SECONDS = 180.0  # two seconds on an idle machine; a busy one with two cores has taken over a minute
_KILL_SECONDS = 15.0
_LOG_TAIL_LINES = 15


class Node:
    """Node ``id`` (from 1), with its ``folder`` (properties, log, data) and ``ports``."""

    def __init__(
        self, node_id: int, folder: Path, node_ports: NodePorts, java: Sequence[str], supervisor: Supervisor
    ) -> None:
        self.id = node_id
        self.folder = folder
        self.ports = node_ports
        self._command = [*java, f"-Djava.io.tmpdir={folder}", "kafka.Kafka", str(folder / "server.properties")]
        self._supervisor = supervisor
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the JVM; ``None`` before the first start."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the JVM is there, frozen or not."""
        return self._pid is not None and self._supervisor.poll(self._pid) is None

    def start(self) -> None:
        """Start the JVM; `wait_until_listening` returns when it serves."""
        if self.running:
            raise BrokerFailed(f"node {self.id} is running already: stop it first")
        self._pid = self._supervisor.start(self._command, log=self.folder / "server.log")

    def wait_until_listening(self, timeout: float = START_SECONDS) -> None:
        """Return when the node accepts clients. Raises `BrokerFailed` with the end of its log; `BrokerTooSlow` after
        ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not ports.accepts(self.ports.client):
            if not self.running:
                raise BrokerFailed(f"node {self.id} ended while it started; its log ends with\n{self.log_tail()}")
            if time.monotonic() >= deadline:
                raise BrokerTooSlow(f"node {self.id} did not listen", timeout, self.log_tail())
            time.sleep(0.02)

    def restart(self) -> None:
        """Stop the node if it runs, start it on the same ports and data, and wait until it listens."""
        self.terminate()
        self.start()
        self.wait_until_listening()

    def terminate(self, timeout: float = _KILL_SECONDS) -> bool:
        """Stop in order (SIGTERM); by SIGKILL after ``timeout`` seconds. Whether it stopped in order.

        The last nodes without a quorum of controllers wait for the others and never stop by themselves.
        """
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a frozen node would never see it
        if self._ended_within(timeout):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """End at once (SIGKILL), frozen or not."""
        self.signal(signal.SIGKILL)
        if not self._ended_within(_KILL_SECONDS):
            raise BrokerFailed(f"node {self.id} (process {self._pid}) does not obey SIGKILL")

    def freeze(self) -> None:
        """Stand still (SIGSTOP): connections stay open, nothing is answered."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines the node wrote; warnings and errors only are logged."""
        log = self.folder / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(nothing)"

    def signal(self, signum: signal.Signals) -> None:
        """Send any signal; a node that does not run gets none."""
        if self._pid is not None:
            self._supervisor.signal(self._pid, signum)

    def _ended_within(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.running:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True
