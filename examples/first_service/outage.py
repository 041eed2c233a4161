# SPDX-License-Identifier: Apache-2.0
"""Publish while the broker is unavailable, and retry afterwards."""

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka

with MemoryKafka() as memory, kafka.open_producer(memory.producer_settings()) as producer:
    memory.broker.disconnect()
    report = producer.publish("orders", [b'{"item": "lamp", "count": 2}'], timeout=0.2)
    print(f"delivered {report.delivered_count}, failed {len(report.failed)}, unknown {len(report.unknown)}")
    print(f"reason: {type(report.unknown[0].error).__name__}")

    memory.broker.reconnect()
    retried = producer.retry(report)
    print(f"delivered {retried.delivered_count}, failed {len(retried.failed)}, unknown {len(retried.unknown)}")
    print(f"same id: {retried.delivered[0].message_id == report.unknown[0].message_id}")
    print(f"records in the log: {len(memory.broker.records('orders'))}")
