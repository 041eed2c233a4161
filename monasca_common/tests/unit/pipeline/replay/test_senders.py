# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import fixtures
import pyarrow as pa
from oslotest import base

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import Message
from monasca_common.kafka.testing import MemoryKafka, MemoryRegistry
from monasca_common.models import avro
from monasca_common.pipeline.archive import layout
from monasca_common.pipeline.archive.reader import Archive, Selection
from monasca_common.pipeline.jobs.job import JobWatcher
from monasca_common.pipeline.replay import senders
from monasca_common.pipeline.replay.batch import replay
from monasca_common.pipeline.replay.senders import MatchingCount, ToKafka, ToStorage
from monasca_common.runtime.envelopes import EnvelopeWriter
from monasca_common.storage import StorageSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.errors import RowsRefused, StorageUnavailable, TooMuchAtOnce
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.unit.persister.memory_storage import MemoryStorage


class StoredFilesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.storage = MemoryStorage()
        self.filing = self.file_writer()

    def file_writer(self, kind=Kind.METRICS, registry=None):
        archive, settings = Archive("/nowhere", "metrics", Selection()), StorageSettings("sqlite", "sqlite://")
        target = ToStorage(archive, kind, settings, registry)
        return senders._FileWriter(self.storage.open_writer(), "a.parquet", target, keeps_offsets=False)

    def write(self, count):
        return self.filing.write(
            [Message("metrics", 0, offset, None, None, envelopes.metric(offset), ()) for offset in range(count)]
        )

    def test_a_batch_that_is_too_slow_is_stored_in_parts(self):
        self.storage.faults += [TooMuchAtOnce("too slow")] * 2
        self.assertEqual(8, self.write(8)["stored"])
        self.assertEqual([float(n) for n in range(8)], [row.value for row in self.storage.rows])
        self.assertGreater(len(self.storage.claims), 1)

    def test_refused_rows_are_also_skipped_in_parts(self):
        self.storage.faults += [TooMuchAtOnce("too slow"), RowsRefused({1: "too old"})]
        counts = self.write(8)
        self.assertEqual(Counter(stored=7, refused=1), +counts)
        self.assertEqual([0.0, *map(float, range(2, 8))], [row.value for row in self.storage.rows])

    def test_a_single_row_that_is_too_slow_ends_the_replay(self):
        self.storage.faults += [TooMuchAtOnce("too slow")] * 9
        self.assertRaises(StorageUnavailable, self.write, 8)

    def test_archived_logs_with_message_ids_are_stored_by_id(self):
        filing = self.file_writer(Kind.LOGS)
        own = (("message-id", b"x" * 32),)
        messages = [Message("log", 0, 0, None, None, b"{", own)]
        messages += [Message("log", 0, n, None, None, envelopes.log(n), own if n == 2 else ()) for n in (1, 2, 3)]
        self.storage.faults += [RowsRefused({0: "too old"})]
        self.assertEqual(Counter(stored=2, refused=1, unreadable=1), +filing.write(messages))
        self.assertEqual([True, False], self.storage.by_id)

    def test_archived_messages_in_avro_are_stored(self):
        registry = SchemaRegistrySettings(
            url=self.useFixture(MemoryRegistry()).url, auto_register=True, unknown_id_seconds=0.1
        )
        values = EnvelopeWriter(registry, avro.METRICS, "metrics").values([envelopes.metric(n) for n in range(2)])
        filing = self.file_writer(registry=registry)
        mixed = [values[0], envelopes.metric(1), b"\0\0\0\0\x63corrupt"]
        messages = [Message("metrics", 0, offset, None, None, value, ()) for offset, value in enumerate(mixed)]
        self.assertEqual(Counter(stored=2, unreadable=1), +filing.write(messages))
        self.assertEqual([0.0, 1.0], [row.value for row in self.storage.rows])


class SentMessagesTest(base.BaseTestCase):
    def test_more_messages_than_the_producer_can_hold_are_sent_in_steps(self):
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("restored", 1)
        self.patch(senders, "worker_producer", lambda _: kafka.producer(budget_messages=2))
        columns = {"partition": 0, "key": None, "value": b"v", "headers": []}
        batch = pa.RecordBatch.from_pylist([columns | {"offset": offset, "timestamp": 1000} for offset in range(5)])
        archive = SimpleNamespace(topic="metrics", read=lambda path: [batch])
        self.assertEqual(Counter(sent=5), ToKafka(archive, "restored", b"")("a.parquet"))
        ids = [message.message_id for message in kafka.broker.records("restored")]
        self.assertEqual([b"metrics/0/%d" % offset for offset in range(5)], ids)


class MissingArchiveTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path, "archive")

    def replay(self):
        """Replay an archive without files, for which Spark has no work."""
        send = MatchingCount(Archive(str(self.folder), "metrics", Selection()))
        return replay(None, send, JobWatcher(), tasks=1)

    def test_a_missing_location_is_an_error_with_its_path(self):
        error = self.assertRaises(ConfigurationError, self.replay)
        self.assertIn(f"{self.folder}/topic=metrics does not exist", str(error))

    def test_a_topic_that_was_not_archived_is_an_error_with_its_path(self):
        (self.folder / layout.topic_folder("other")).mkdir(parents=True)
        error = self.assertRaises(ConfigurationError, self.replay)
        self.assertIn(f"{self.folder}/topic=metrics does not exist", str(error))

    def test_an_archive_without_messages_is_not_an_error(self):
        (self.folder / layout.topic_folder("metrics")).mkdir(parents=True)
        self.assertEqual((0, 0), (self.replay().done, self.replay().left))

    def test_an_archive_with_an_unfinished_first_batch_is_not_an_error(self):
        (self.folder / layout.staging_folder("metrics") / "batch").mkdir(parents=True)
        self.assertEqual(0, self.replay().left)
