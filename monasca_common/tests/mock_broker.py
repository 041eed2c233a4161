# SPDX-License-Identifier: Apache-2.0
"""librdkafka's broker within a process, for experiments without Java.

It stores nothing permanently, hides no aborted records, removes no duplicates and supports no describe requests (see
the strict expected failures of the contract). It creates a topic with four partitions on its first use.
"""

from __future__ import annotations

from confluent_kafka import Producer

_ANSWER_SECONDS = 60.0


class MockBroker:
    """Listens on the loopback address while this object exists; other processes may connect."""

    def __init__(self) -> None:
        self._host = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0})
        brokers = self._host.list_topics(timeout=_ANSWER_SECONDS).brokers.values()
        self.bootstrap_servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def create_topic(self, name: str) -> None:
        self._host.list_topics(name, timeout=_ANSWER_SECONDS)
