# SPDX-License-Identifier: Apache-2.0
"""Runs Apache Kafka on this machine, for trials and tests."""

from monasca_common.devbroker.cluster import KafkaCluster
from monasca_common.devbroker.errors import (
    BrokerFailed,
    DevBrokerError,
    InvalidCluster,
    JarsUnavailable,
    JavaNotFound,
    PortTaken,
)
from monasca_common.devbroker.node import Node
from monasca_common.devbroker.schema_registry import ApicurioRegistry

__all__ = [
    "ApicurioRegistry",
    "BrokerFailed",
    "DevBrokerError",
    "InvalidCluster",
    "JarsUnavailable",
    "JavaNotFound",
    "KafkaCluster",
    "Node",
    "PortTaken",
]
