# SPDX-License-Identifier: Apache-2.0
"""A handler of the sink over a SQLite file, without Kafka."""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from oslo_config import cfg
from oslotest import base

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import Poison
from monasca_common.kafka.message import LazyColumns, PartitionBatch, TopicPartition
from monasca_common.runtime.member_health import MemberHealth, MemberStatus
from monasca_common.sink.mapping import read_mapping
from monasca_common.sink.service import decoders
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.batch_handler import BatchHandler, HandlerParts
from monasca_common.storage.start_offsets import StartOffsets
from monasca_common.storage.tables.steps import misfit, table_steps
from monasca_common.storage.tables.writer import TablesWriter, storing
from monasca_common.storage.writer_pool import WriterPool

TIME_MS = 1_769_839_200_000  # 2026-01-31T06:00:00Z


def message(value, key=None, headers=(), timestamp=TIME_MS):
    return {"values": value, "keys": key, "headers": tuple(headers), "timestamps": timestamp}


def batch(topic, messages, first=0, partition=0):
    offsets = list(range(first, first + len(messages)))

    def read(name):
        return offsets if name == "offsets" else [each[name] for each in messages]

    return PartitionBatch(TopicPartition(topic, partition), 0, LazyColumns(len(messages), read))


class SinkTestCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.use_database("sink.sqlite")

    def use_database(self, name):
        self.path = self.folder / name
        self.settings = StorageSettings("sqlite", f"sqlite:///{self.path}", write_timeout_seconds=2.0)
        self.storage = open_storage(self.settings)
        self.storage.upgrade()

    def mapping(self, text):
        file = self.folder / "mapping.toml"
        file.write_text(text)
        return read_mapping(file)

    def open(self, text, *, create=True, conf=None):
        tables = self.mapping(text)
        if create:
            table_steps(self.settings, tables, execute=True)
        by_topic = decoders(tables, conf or cfg.ConfigOpts())
        writers = WriterPool(self.storage)
        self.addCleanup(writers.close)
        health = MemberHealth(MemberStatus("sink-0"), SystemClock())
        self.applied, self.failures = [], []
        starts = StartOffsets(writers, health, self.failures.append)
        parts = HandlerParts("sink", writers, starts, health, self.failures.append)
        table_writers = {
            topic: TablesWriter(each.tables, self.settings.driver, lambda: misfit(self.settings, tables))
            for topic, each in by_topic.items()
        }
        wrote = lambda applied, _: self.applied.append(applied)  # noqa: E731
        self.handler = BatchHandler(parts, by_topic, storing(table_writers), wrote)
        return self.handler

    def process(self, part):
        """Handle a batch as a processor does; return the reasons of dead letters, by offset."""
        letters = {}
        with contextlib.suppress(Poison):
            self.handler(part)
            return letters
        while len(part):
            try:
                self.handler(part)
                return letters
            except Poison as error:
                letters |= {part.offsets[index]: reason for index, reason in error.reasons.items()}
                rest = part.without(error.reasons)
                if not len(rest):
                    self.handler.accounted(part.topic_partition, part.start_offset, part.next_offset)
                part = rest
        return letters

    def select(self, statement):
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(statement).fetchall()
