# SPDX-License-Identifier: Apache-2.0
"""Publish two orders, and print the outcome of each."""

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka

with MemoryKafka() as memory, kafka.open_producer(memory.producer_settings()) as producer:
    report = producer.publish("orders", [b'{"item": "lamp", "count": 2}', b'{"item": "desk", "count": 1}'])
    for delivery in report.delivered:
        print(f"order {delivery.index} is at offset {delivery.offset} of partition {delivery.partition}")
