# SPDX-License-Identifier: Apache-2.0
"""Kafka without a broker: the same producers and consumers over a log in this process's memory.

For this library, it behaves like librdkafka and a broker, and it fails on demand (`MemoryBroker.inject`). It has no
transactions, replicas, compaction or permissions. Groups rebalance incrementally, and have no static members.
"""

from monasca_common.kafka.clock import VirtualClock
from monasca_common.kafka.transport.memory.broker import MemoryBroker, broker_for, install_broker, reset_brokers
from monasca_common.kafka.transport.memory.consumer import MemoryConsumer
from monasca_common.kafka.transport.memory.injection import Delay, Fail, Hang, LoseAnswer
from monasca_common.kafka.transport.memory.producer import MemoryProducer

__all__ = [
    "Delay",
    "Fail",
    "Hang",
    "LoseAnswer",
    "MemoryBroker",
    "MemoryConsumer",
    "MemoryProducer",
    "VirtualClock",
    "broker_for",
    "install_broker",
    "reset_brokers",
]
