# SPDX-License-Identifier: Apache-2.0
"""Handle messages of one key in order, and up to four keys concurrently."""

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka

handled: dict[str, list[str]] = {}


def handle(message: kafka.Message) -> None:
    handled.setdefault((message.key or b"").decode(), []).append((message.value or b"").decode())


with MemoryKafka() as memory:
    memory.broker.create_topic("orders")
    records = [kafka.Record(b"%d" % number, key=key) for number in range(3) for key in (b"ada", b"bob")]
    memory.producer().publish("orders", records).raise_for_undelivered()
    consumer = memory.consumer("orders", "shop")
    memory.drain(kafka.Processor(consumer, handle, per_message=True, order="key", threads=4))

for customer in sorted(handled):
    print(customer, *handled[customer])
