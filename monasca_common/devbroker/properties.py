# SPDX-License-Identifier: Apache-2.0
"""The ``server.properties`` of a node."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monasca_common.devbroker.ports import HOST
from monasca_common.devbroker.security import Security

COORDINATOR_PARTITIONS = 4  # partitions of each internal topic (groups, transactions and share groups)

# Failures are detected and groups are rebalanced within seconds, because tests wait for both.
_QUICK = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
}


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports of a node. ``advertised``: the port that clients receive, which can be the port of a proxy."""

    client: int
    internal: int
    controller: int
    mutual_tls: int
    advertised: int


def node_properties(
    node_id: int, ports: Sequence[NodePorts], security: Security, folder: Path, certificates: Path
) -> dict[str, str]:
    """Return the properties of node ``node_id`` (from 1). ``ports``: the ports of all nodes."""
    count = len(ports)
    own = ports[node_id - 1]
    voters = (f"{i}@{HOST}:{node.controller}" for i, node in enumerate(ports, start=1))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
        # Brokers have a separate listener, so that a proxy for clients does not affect replication.
        "inter.broker.listener.name": "INTERNAL",
        "log.dirs": str(folder / "data"),
        "num.partitions": "4",
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        # Trials and tests publish records with old timestamps; the broker's check every five minutes would delete them.
        "log.retention.ms": "-1",
        # The default uses 128 MiB of each node's heap before the first message.
        "log.cleaner.dedupe.buffer.size": "4194304",
        **_listeners(own, security),
        **_replication(count),
        **_QUICK,
        **security.server_properties(certificates),
    }


def render(properties: Mapping[str, str]) -> str:
    """Return the text of a properties file, which Java reads as Latin-1, with the escapes that it shares with JSON."""
    return "".join(json.dumps(f"{name}={value}")[1:-1] + "\n" for name, value in properties.items())


def _listeners(ports: NodePorts, security: Security) -> dict[str, str]:
    listening = {"CLIENT": ports.client, "INTERNAL": ports.internal}
    advertised = {"CLIENT": ports.advertised, "INTERNAL": ports.internal}
    protocols = {
        "CLIENT": security.protocol,
        "INTERNAL": security.internal_protocol,
        "CONTROLLER": security.internal_protocol,
    }
    if security.has_mutual_tls:
        listening["MTLS"] = advertised["MTLS"] = ports.mutual_tls
        protocols["MTLS"] = "SSL"
    return {
        "listeners": _addresses({**listening, "CONTROLLER": ports.controller}),
        "advertised.listeners": _addresses(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
    }


def _addresses(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())


def _replication(count: int) -> dict[str, str]:
    """Return settings that replicate every topic to every node and permit one node to be down."""
    copies, in_sync = str(count), str(max(1, count - 1))
    properties = {"default.replication.factor": copies, "min.insync.replicas": in_sync}
    for topic in ("transaction.state.log", "share.coordinator.state.topic"):
        properties |= {
            f"{topic}.replication.factor": copies,
            f"{topic}.min.isr": in_sync,
            f"{topic}.num.partitions": str(COORDINATOR_PARTITIONS),
        }
    return properties | {
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    }
