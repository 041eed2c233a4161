# SPDX-License-Identifier: Apache-2.0
"""Handle the messages of a partition in batches of up to 500 messages, collected for up to one second."""

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka


def insert(batch: kafka.PartitionBatch) -> None:
    rows = list(zip(batch.offsets, batch.values, strict=True))
    print(f"{len(rows)} rows of partition {batch.topic_partition.partition}, next offset {batch.next_offset}")


with MemoryKafka() as memory:
    memory.broker.create_topic("readings")
    memory.producer().publish("readings", [b"21.5"] * 1200).raise_for_undelivered()
    consumer = memory.consumer("readings", "writer", batch_size=500)
    memory.drain(kafka.Processor(consumer, insert, max_wait_seconds=1.0))
