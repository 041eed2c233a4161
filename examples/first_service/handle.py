# SPDX-License-Identifier: Apache-2.0
"""Handle a valid order, an order that needs a second attempt, and two orders that can never be handled."""

from orders import Orders

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka

ORDERS = [
    b'{"item": "lamp", "count": 2}',
    b'{"item": "desk", "count": 1}',
    b'{"item": "lamp", "count": 0}',
    b"not JSON",
]
failures = [ConnectionError("the stock is unavailable")]


def reserve(order_id: bytes, item: str, count: int) -> None:
    if item == "desk" and failures:
        raise failures.pop()
    print(f"reserved {count} {item}")


with MemoryKafka() as memory:
    for topic in ("orders", "orders.dlq", "invoices"):
        memory.broker.create_topic(topic)
    producer, consumer = memory.producer(), memory.consumer("orders", "shop")
    producer.publish("orders", ORDERS).raise_for_undelivered()

    memory.drain(Orders(reserve).processor(consumer, producer))

    print(f"invoices: {len(memory.broker.records('invoices'))}")
    for record in memory.broker.records("orders.dlq"):
        error = dict(record.headers)[kafka.dead_letters.ERROR_TEXT] or b""
        print(f"dead letter {record.value!r}: {error.decode()}")
