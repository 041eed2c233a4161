# SPDX-License-Identifier: Apache-2.0
"""Repair a bug in a handler, and replay the dead letter that it caused."""

from collections.abc import Callable

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.operations.dead_letters import DeadLetterReplay


def with_a_bug(message: kafka.Message) -> None:
    raise KeyError("customer")


def repaired(message: kafka.Message) -> None:
    replays = dict(message.headers)[kafka.dead_letters.REPLAYS] or b""
    print(f"handled {message.value!r}, replays: {replays.decode()}")


with MemoryKafka() as memory:
    for topic in ("orders", "orders.dlq"):
        memory.broker.create_topic(topic)
    producer, consumer = memory.producer(), memory.consumer("orders", "shop")
    producer.publish("orders", [b'{"item": "lamp", "count": 2}']).raise_for_undelivered()

    def processor(handler: Callable[[kafka.Message], None]) -> kafka.Processor:
        return kafka.Processor(consumer, handler, per_message=True, producer=producer, dead_letters=kafka.DeadLetters())

    drained = memory.drain(processor(with_a_bug))
    print(f"dead letters: {len(drained.dead_letters)}")

    for letter in DeadLetterReplay(memory.consumer("orders.dlq", "replay")).send(producer):
        print(f"replayed to {letter.origin_topic}")
    memory.drain(processor(repaired))
