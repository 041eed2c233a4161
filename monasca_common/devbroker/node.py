# SPDX-License-Identifier: Apache-2.0
"""A node of a cluster: a JVM that can be started, stopped, killed and frozen."""

import signal
from collections.abc import Sequence
from pathlib import Path

from monasca_common.devbroker import ports
from monasca_common.devbroker.errors import BrokerFailed, BrokerTooSlow
from monasca_common.devbroker.properties import NodePorts
from monasca_common.devbroker.supervisor import ServerProcess, Supervisor

# a start takes two seconds on an idle machine, and over a minute on a busy machine with two cores
START_SECONDS = 180.0
_KILL_SECONDS = 15.0


class Node(ServerProcess):
    """Node ``id`` (from 1) with its ``folder`` (properties, log, data) and ``ports``."""

    def __init__(
        self, node_id: int, folder: Path, node_ports: NodePorts, java: Sequence[str], supervisor: Supervisor
    ) -> None:
        super().__init__(supervisor, folder / "server.log")
        self.id = node_id
        self.folder = folder
        self.ports = node_ports
        self._command = [*java, f"-Djava.io.tmpdir={folder}", "kafka.Kafka", str(folder / "server.properties")]

    def start(self) -> None:
        """Start the JVM. This does not wait; `wait_until_listening` waits until the node accepts clients."""
        if self.running:
            raise BrokerFailed(f"node {self.id} is already running: stop it first")
        self.launch(self._command)

    def wait_until_listening(self, timeout: float = START_SECONDS) -> None:
        """Wait until the node accepts clients. Raises `BrokerFailed` with the end of the log, or `BrokerTooSlow`."""
        if not self.ready_within(timeout, lambda: ports.accepts(self.ports.client)):
            if not self.running:
                raise BrokerFailed(f"node {self.id} exited while it started; its log ends with\n{self.log_tail()}")
            raise BrokerTooSlow(f"node {self.id} did not listen", timeout, self.log_tail())

    def restart(self) -> None:
        """Stop the node if it runs, start it with the same ports and data, and wait until it listens."""
        self.terminate()
        self.start()
        self.wait_until_listening()

    def terminate(self, timeout: float = _KILL_SECONDS) -> bool:
        """Send SIGTERM, and SIGKILL after ``timeout`` seconds. Return whether the node exited after SIGTERM.

        Without a quorum of controllers, a node waits for the other nodes and does not stop.
        """
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a frozen node does not handle SIGTERM
        if self.ended_within(timeout):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """Send SIGKILL, which also ends a frozen node."""
        self.signal(signal.SIGKILL)
        if not self.ended_within(_KILL_SECONDS):
            raise BrokerFailed(f"node {self.id} (process {self._pid}) has not exited after SIGKILL")

    def freeze(self) -> None:
        """Send SIGSTOP: connections stay open, but requests get no response."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        self.signal(signal.SIGCONT)
