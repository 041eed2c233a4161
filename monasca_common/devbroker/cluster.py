# SPDX-License-Identifier: Apache-2.0
"""An Apache Kafka cluster on this machine, for trials and tests."""

import functools
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from monasca_common.devbroker import ports
from monasca_common.devbroker.data_folder import DataFolder
from monasca_common.devbroker.errors import BrokerTooSlow, InvalidCluster, PortTaken
from monasca_common.devbroker.jars import kafka_jars
from monasca_common.devbroker.java import find_java
from monasca_common.devbroker.node import START_SECONDS, Node
from monasca_common.devbroker.ports import HOST
from monasca_common.devbroker.properties import COORDINATOR_PARTITIONS, NodePorts, node_properties, render
from monasca_common.devbroker.security import ADMIN, DEFAULT_USERS, Security
from monasca_common.devbroker.supervisor import Supervisor, wait_until

if TYPE_CHECKING:
    from monasca_common.kafka import Admin

_ORDERLY_STOP_SECONDS = 6.0
_COORDINATOR_TOPICS = {"__consumer_offsets", "__transaction_state"}

# Serial garbage collection without the C2 compiler halves the start time (1.2 s per node) and costs little at the load
# of a development broker. A node exits if its heap is full; otherwise it could continue with a dead network thread and
# serve no client.
_JAVA_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


class KafkaCluster:
    """Apache Kafka (KRaft) on the loopback address: one node, or three with three replicas of every topic.

    ``data_dir`` keeps the data for the next start; without it, the data are removed on stop. ``port``: the port for
    clients (three nodes also use the next two ports). `Security` describes ``tls``, ``sasl``, ``acl`` and ``users``.
    ``config`` overrides broker settings. ``start_timeout``: seconds for a start including formatting, after which
    `start` raises `BrokerTooSlow`. The environment variable ``KAFKA_OPTS`` can contain JVM options, as for Kafka's own
    scripts; ``MONASCA_COMMON_KAFKA_VERSION`` selects a different version. A context manager. Even if this process is
    killed, its child processes are stopped and its temporary folders are removed. A failed start raises a
    `DevBrokerError` that names the remedy.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        data_dir: str | Path | None = None,
        port: int | None = None,
        tls: bool = False,
        sasl: bool = False,
        acl: bool = False,
        users: Mapping[str, str] = DEFAULT_USERS,
        config: Mapping[str, str] | None = None,
        start_timeout: float = START_SECONDS,
    ) -> None:
        if nodes not in (1, 3):
            raise InvalidCluster(f"nodes is {nodes}: a cluster has 1 node, or 3 nodes so that one can fail")
        self.security = Security(tls=tls, sasl=sasl, acl=acl, users=users)
        self._node_count = nodes
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._port = port
        self._config = dict(config or {})
        self._start_timeout = start_timeout
        self._deadline = 0.0  # the deadline of the start in progress
        self._nodes: tuple[Node, ...] = ()
        self._storage: DataFolder | None = None
        self._supervisor: Supervisor | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every node and wait until the cluster is complete."""
        if self._supervisor is not None:
            raise InvalidCluster("the cluster is already running: stop it first")
        java = [find_java(), *_JAVA_OPTIONS, *shlex.split(os.environ.get("KAFKA_OPTS", ""))]
        java += ["-cp", f"{kafka_jars()}/*"]
        self._deadline = time.monotonic() + self._start_timeout  # the time to fetch the jars is not included
        folder = self._data_dir or Path(tempfile.mkdtemp(prefix="monasca-common-broker-"))
        self._supervisor = Supervisor(remove=() if self._data_dir else (folder,))
        try:
            self._storage = DataFolder(folder, self._node_count, self.security)
            self._storage.prepare()
            self._start_nodes(java)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop every node, in an orderly way if the data are kept. Can be called repeatedly."""
        if self._supervisor is None:
            return
        self.__dict__.pop("admin", None)
        if self._data_dir is not None:
            self._stop_in_order()
        self._supervisor.close()
        self._supervisor = None
        self._nodes = ()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for clients as ``host:port,…``."""
        return ",".join(f"{HOST}:{node.ports.advertised}" for node in self._started())

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self._started()

    def node(self, node_id: int) -> Node:
        """Return node ``node_id``; ids start at 1."""
        return self._started()[node_id - 1]

    def client_options(self, user: str = ADMIN) -> dict[str, str]:
        """Return librdkafka's options for ``user``."""
        servers = {"bootstrap.servers": self.bootstrap_servers}
        return servers | self.security.client_options(user, self.certificates)

    def mutual_tls_options(self, user: str = ADMIN) -> dict[str, str]:
        """Return librdkafka's options for ``user`` with a certificate. Requires ``tls`` and ``sasl``."""
        if not self.security.has_mutual_tls:
            raise InvalidCluster("the listener for logins with only a certificate requires tls and sasl")
        servers = ",".join(f"{HOST}:{node.ports.mutual_tls}" for node in self._started())
        return {"bootstrap.servers": servers} | self.security.mutual_tls_options(user, self.certificates)

    def direct_options(self) -> dict[str, str]:
        """Return librdkafka's options for the brokers' own listener, without TLS and ACLs."""
        servers = ",".join(f"{HOST}:{node.ports.internal}" for node in self._started())
        return {"bootstrap.servers": servers} | self.security.internal_options()

    @property
    def certificates(self) -> Path:
        """The folder that contains ``ca.pem``, and ``<user>.pem`` and ``<user>.key`` of each user."""
        if self._storage is None:
            raise InvalidCluster("the cluster is not running: call start(), or use it in a with statement")
        return self._storage.certificates

    @functools.cached_property
    def admin(self) -> "Admin":
        """An admin client with the rights of a super user."""
        from monasca_common.kafka import Admin

        return Admin(self.direct_options())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic with ``replication_factor`` replicas, by default one on every node."""
        copies = replication_factor or self._node_count
        self.admin.create_topic(name, partitions, replication_factor=copies, config=config)

    def _started(self) -> tuple[Node, ...]:
        if not self._nodes:
            raise InvalidCluster("the cluster is not running: call start(), or use it in a with statement")
        return self._nodes

    def _start_nodes(self, java: list[str]) -> None:
        storage, supervisor = self._storage, self._supervisor
        assert storage is not None and supervisor is not None
        chosen = self._choose_ports()
        for node_id in range(1, self._node_count + 1):
            properties = node_properties(node_id, chosen, self.security, storage.node(node_id), storage.certificates)
            (storage.node(node_id) / "server.properties").write_text(render(properties | self._config))
        storage.format(java, self._left())
        self._nodes = tuple(
            Node(node_id, storage.node(node_id), node_ports, java, supervisor)
            for node_id, node_ports in enumerate(chosen, start=1)
        )
        for node in self._nodes:
            node.start()
        for node in self._nodes:
            node.wait_until_listening(self._left())

    def _wait_until_ready(self) -> None:
        """Wait for the nodes, and create the internal topics of groups and transactions. Otherwise, the first request
        would create them, and librdkafka would retry it only after a second.
        """
        from monasca_common.kafka.errors import TransportError

        try:
            self.admin.wait_for_brokers(self._node_count, self._left())
            missing = _COORDINATOR_TOPICS - self.admin.partition_counts().keys()
            if missing:
                partitions = dict.fromkeys(missing, COORDINATOR_PARTITIONS)
                configs = {name: {"cleanup.policy": "compact"} for name in missing}
                self.admin.create_topics(partitions, replication_factor=-1, configs=configs, timeout=self._left())
        except TransportError as error:
            said = "\n".join([str(error), *(node.log_tail() for node in self._nodes)])
            raise BrokerTooSlow("the nodes listened, but were not ready", self._start_timeout, said) from error

    def _left(self) -> float:
        """Return the seconds until the start times out."""
        return max(1.0, self._deadline - time.monotonic())

    def _choose_ports(self) -> tuple[NodePorts, ...]:
        free = iter(ports.free_ports(4 * self._node_count))
        chosen = []
        for index in range(self._node_count):
            client, internal, controller, mutual_tls = (next(free) for _ in range(4))
            client = client if self._port is None else self._port + index
            if not ports.is_free(client):
                raise PortTaken(
                    f"another program listens on {HOST}:{client}: choose a different port (broker start --port, "
                    "KafkaCluster(port=...)), or any free port (--port 0)"
                )
            chosen.append(NodePorts(client, internal, controller, mutual_tls, advertised=client))
        return tuple(chosen)

    def _stop_in_order(self) -> None:
        """Stop all nodes concurrently, because otherwise the last nodes would wait for a quorum. The supervisor kills
        nodes that hang."""
        for node in self._nodes:
            node.signal(signal.SIGTERM)
        wait_until(lambda: not any(node.running for node in self._nodes), _ORDERLY_STOP_SECONDS)
