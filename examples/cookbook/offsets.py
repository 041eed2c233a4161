# SPDX-License-Identifier: Apache-2.0
"""Store each message as exactly one row, and its offset in the same transaction."""

import sqlite3
from collections.abc import Iterable

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka

database = sqlite3.connect(":memory:", check_same_thread=False)
database.executescript("CREATE TABLE reading (value); CREATE TABLE next_offset (partition PRIMARY KEY, number)")


def stored_offset(partition: int) -> int | None:
    row = database.execute("SELECT number FROM next_offset WHERE partition = ?", (partition,)).fetchone()
    return None if row is None else row[0]


class FromDatabase(kafka.RebalanceListener):
    def assigned(self, partitions: Iterable[kafka.TopicPartition]) -> dict[kafka.TopicPartition, int]:
        offsets = {partition: stored_offset(partition.partition) for partition in partitions}
        return {partition: offset for partition, offset in offsets.items() if offset is not None}


def handle(batch: kafka.PartitionBatch) -> None:
    partition = batch.topic_partition.partition
    stored = stored_offset(partition)
    if stored is not None and stored < batch.start_offset:
        raise kafka.ReadFrom(stored)  # for example after the database was restored from a backup
    new = [value for offset, value in zip(batch.offsets, batch.values, strict=True) if offset >= (stored or 0)]
    with database:
        database.executemany("INSERT INTO reading VALUES (?)", [(value,) for value in new])
        database.execute("INSERT OR REPLACE INTO next_offset VALUES (?, ?)", (partition, batch.next_offset))


with MemoryKafka() as memory:
    memory.broker.create_topic("readings")
    memory.producer().publish("readings", [b"21.5", b"22.0"]).raise_for_undelivered()
    for group in ("writer", "writer-without-offsets"):
        memory.drain(kafka.Processor(memory.consumer("readings", group, listener=FromDatabase()), handle))
    print(database.execute("SELECT count(*) FROM reading").fetchone()[0], "rows")
