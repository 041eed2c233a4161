# SPDX-License-Identifier: Apache-2.0
"""A schema registry on this machine, for trials and tests: Apicurio Registry, with Confluent's API."""

import http.client
import tarfile
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monasca_common.devbroker import ports
from monasca_common.devbroker.errors import BrokerFailed, BrokerTooSlow, PortTaken
from monasca_common.devbroker.jars import registry_archive
from monasca_common.devbroker.java import find_java
from monasca_common.devbroker.node import START_SECONDS
from monasca_common.devbroker.ports import HOST
from monasca_common.devbroker.supervisor import ServerProcess, Supervisor

_API = "/apis/ccompat/v7"
#: Python before 3.11.4 has no filter; the digest of the archive is pinned.
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+ExitOnOutOfMemoryError", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ApicurioRegistry(ServerProcess):
    """Apicurio Registry on the loopback address, with its schemas in memory. A context manager.

    ``port``: ``None`` chooses a free port. ``start_timeout``: the maximum duration of a start in seconds, without the
    download of the archive. A failed start raises a `DevBrokerError` that names the remedy. Even if this process is
    killed, its child processes are stopped and its files are removed.
    """

    def __init__(self, *, port: int | None = None, start_timeout: float = START_SECONDS) -> None:
        self._port = ports.free_ports(1)[0] if port is None else port
        self._start_timeout = start_timeout
        self._folder = Path(tempfile.gettempdir())
        self._java = ""

    @property
    def url(self) -> str:
        """The URL for clients of Confluent's API."""
        return f"http://{HOST}:{self._port}{_API}"

    def __enter__(self) -> Self:
        self._java, archive = find_java(), registry_archive()
        if not ports.is_free(self._port):
            raise PortTaken(f"another program listens on {HOST}:{self._port}: end it, or choose a free port (--port 0)")
        self._folder = Path(tempfile.mkdtemp(prefix="monasca-common-registry-"))
        super().__init__(Supervisor(remove=(self._folder,)), self._folder / "registry.log")
        try:
            with tarfile.open(archive) as content:
                content.extractall(self._folder, **_FILTER)  # nosec B202
            self.start()
        except BaseException:
            self._supervisor.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._supervisor.close()

    def start(self) -> None:
        """Start the process and wait until it responds. After a kill, the registry has lost its schemas."""
        [jar] = self._folder.glob("*-runner.jar")
        options = [f"-Djava.io.tmpdir={self._folder}", f"-Dquarkus.http.host={HOST}"]
        options.append(f"-Dquarkus.http.port={self._port}")
        self.launch([self._java, *_JAVA_OPTIONS, *options, "-jar", str(jar)])
        if not self.ready_within(self._start_timeout, self._answers):
            if not self.running:
                raise BrokerFailed(f"the schema registry exited; its log ends with\n{self.log_tail()}")
            raise BrokerTooSlow("the schema registry did not respond", self._start_timeout, self.log_tail())

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=1.0)
        try:
            connection.request("GET", f"{_API}/subjects")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
