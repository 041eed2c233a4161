# SPDX-License-Identifier: Apache-2.0
"""Clusters for tests.

::

    class TestOrders(base.BaseTestCase):
        def test_an_order_arrives(self):
            cluster = self.useFixture(KafkaClusterFixture()).cluster

A start takes 3 s with one node and 7 s with three nodes, including formatting, so tests that do not break their cluster
share one: `SharedKafkaCluster`.
"""

import atexit
import dataclasses
import os
import tempfile
import threading
import time
import uuid
from typing import Any

from fixtures import EnvironmentVariable, Fixture, MonkeyPatch

from monasca_common.devbroker import BrokerFailed, InvalidCluster, KafkaCluster, ports
from monasca_common.devbroker.node import START_SECONDS
from monasca_common.devbroker.properties import NodePorts
from monasca_common.kafka.errors import TransportError
from monasca_common.tests.kafka_proxy import KafkaProxy

# oslotest gives every test an empty HOME (without the cache) and a temporary folder that is removed after the test.
# Servers that outlive a test use the original folders.
_HOME = os.environ.get("HOME")
_TEMPORARY = tempfile.gettempdir()


class ProxiedKafkaCluster(KafkaCluster):
    """A cluster with ``proxy`` in front of every node. Takes the arguments of `KafkaCluster`, except ``tls``."""

    def __init__(self, nodes: int = 1, **settings: Any) -> None:
        super().__init__(nodes, **settings)
        if self.security.tls:
            raise InvalidCluster("a proxied cluster has no tls, because the proxy reads requests")
        self.proxy = KafkaProxy()

    def stop(self) -> None:
        super().stop()
        self.proxy.stop()

    def _choose_ports(self) -> tuple[NodePorts, ...]:
        """Choose other ports for the nodes, and let the proxy listen on the ports that clients receive."""
        chosen = super()._choose_ports()
        behind = zip(chosen, ports.free_ports(len(chosen)), strict=True)
        nodes = tuple(dataclasses.replace(node, client=port) for node, port in behind)
        self.proxy.start({node.advertised: node.client for node in nodes})
        return nodes


def _new_cluster(nodes: int, *, proxied: bool = False, **settings: Any) -> KafkaCluster:
    return (ProxiedKafkaCluster if proxied else KafkaCluster)(nodes, **settings)


class _ClusterFixture(Fixture):
    cluster: KafkaCluster

    def topic(self, partitions: int = 1, **settings: Any) -> str:
        """Create a topic with a unique name and return it. Takes the arguments of `KafkaCluster.create_topic`.

        Repeats the request while a broker is fenced. The controller fences a broker that was frozen or had no processor
        time, until the broker sends a heartbeat again.
        """
        name = f"test-{uuid.uuid4().hex[:12]}"
        deadline = time.monotonic() + _FENCED_SECONDS
        while True:
            try:
                self.cluster.create_topic(name, partitions, **settings)
                return name
            except TransportError as error:
                if error.name != "INVALID_REPLICATION_FACTOR" or time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)


class KafkaClusterFixture(_ClusterFixture):
    """A cluster for one test. Takes the arguments of `KafkaCluster`, and ``proxied``."""

    def __init__(self, nodes: int = 1, **settings: Any) -> None:
        self.cluster = _new_cluster(nodes, **settings)

    def _setUp(self) -> None:
        self.addCleanup(self.cluster.stop)
        with EnvironmentVariable("HOME", _HOME):
            self.cluster.start()


class SharedKafkaCluster(_ClusterFixture):
    """One cluster for all tests of this process that use the same settings; the first test starts it.

    After each test, all nodes are running again and the proxy has no fault. Topics and groups stay, so use new names
    (`topic`). A process keeps the two clusters that were used last; a test that uses three shared clusters loses the
    first one.
    """

    def __init__(self, nodes: int = 1, **settings: Any) -> None:
        self._nodes = nodes
        self._settings = settings

    def _setUp(self) -> None:
        self.cluster = _shared(self._nodes, self._settings)
        self.addCleanup(self._repair)

    @property
    def proxy(self) -> KafkaProxy:
        assert isinstance(self.cluster, ProxiedKafkaCluster)
        return self.cluster.proxy

    def _repair(self) -> None:
        try:
            if isinstance(self.cluster, ProxiedKafkaCluster):
                self.cluster.proxy.clear()
            for node in self.cluster.nodes:
                if node.running:
                    node.thaw()
                else:
                    node.restart()
            self.cluster.admin.wait_for_brokers(len(self.cluster.nodes), timeout=START_SECONDS)
        except Exception as error:
            # Only this test fails, because the next test gets a new cluster.
            logs = "\n".join(f"node {node.id}: {node.log_tail()}" for node in self.cluster.nodes)
            _discard(self.cluster)
            raise BrokerFailed(
                f"the shared cluster did not recover from the test and was stopped: {error}\n{logs}"
            ) from error


# An idle node takes 200 MB and 3 % of a core.
_KEPT_CLUSTERS = 2
_FENCED_SECONDS = 15.0
_clusters: dict[str, KafkaCluster] = {}  # the most recently used cluster is the last one
_starting = threading.Lock()


def _shared(nodes: int, settings: dict[str, Any]) -> KafkaCluster:
    key = repr((nodes, sorted(settings.items())))
    with _starting:
        cluster = _clusters.pop(key, None)
        if cluster is None:
            while len(_clusters) >= _KEPT_CLUSTERS:
                _clusters.pop(next(iter(_clusters))).stop()
            cluster = _new_cluster(nodes, **settings)
            with EnvironmentVariable("HOME", _HOME), MonkeyPatch("tempfile.tempdir", _TEMPORARY):
                cluster.start()
            atexit.register(cluster.stop)
        _clusters[key] = cluster
        return cluster


def _discard(cluster: KafkaCluster) -> None:
    with _starting:
        for key in [key for key, kept in _clusters.items() if kept is cluster]:
            del _clusters[key]
    cluster.stop()
