# SPDX-License-Identifier: Apache-2.0
"""Batches of the archive without Spark, with SQLite and the memory broker."""

from pathlib import Path
from unittest import mock

import fixtures

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.pipeline.archive import batch, layout
from monasca_common.pipeline.archive.batch import Archiver
from monasca_common.pipeline.archive.layout import Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.archive.writer import StagedFiles
from monasca_common.pipeline.errors import Fenced
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase


class Driver:
    """A process of the job. ``staged`` is called after the files of a batch are written."""

    def __init__(self, case):
        consumer = case.kafka.consumer_settings("metrics", "g")
        stream = StreamSettings(consumer, case.kafka.producer_settings(), connection=case.url)
        self.topic = SourceTopic(consumer)
        case.addCleanup(self.topic.close)
        settings = ArchiveSettings((stream,), case.location)
        self.archiver = Archiver(mock.Mock(), settings, stream, self.topic, case.offset_store)
        self.staged = lambda: None

    def step(self):
        with (
            mock.patch.object(batch.connector, "ranges_frame", lambda _spark, _settings, ranges, **_: ranges),
            mock.patch.object(batch, "stage_files", self.stage),
        ):
            return self.archiver.step()

    def stage(self, ranges, store, topic, name, _envelopes):
        path = f"{layout.staging_folder(topic, name)}/0-00000{layout.STAGED}"
        with store.writing(path) as stream:
            stream.write(b"records")
        self.staged()
        offsets = Offsets(0, ranges[0].start, ranges[0].end - 1)
        return StagedFiles((ArchivedFile(topic, 0, offsets, ranges[0].span, 7, name, path),), 0, {})


class ArchiverTest(DatabaseCase):
    def setUp(self):
        super().setUp()
        self.location = self.useFixture(fixtures.TempDir()).path
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("metrics", 1)

    def send(self, count):
        self.kafka.producer().publish("metrics", [b"x"] * count).raise_for_undelivered()

    def files(self):
        """Return the offsets in the names of the placed files, and the number of folders of batches."""
        names = sorted(path.name[:44] for path in Path(self.location).rglob("*.parquet"))
        folders = list(Path(self.location, layout.staging_folder("metrics")).glob("*"))
        return [tuple(map(int, name[1:].split("-"))) for name in names], len(folders)

    # Rule 38
    def test_a_process_that_failed_does_not_remove_the_files_of_another_process(self):
        slow, fast = Driver(self), Driver(self)
        self.send(3)
        slow.staged = fast.step
        self.assertRaises(Fenced, slow.step)
        self.send(2)
        slow.staged = mock.Mock(side_effect=TransportError("no leader"))
        fast.staged = lambda: self.assertRaises(TransportError, slow.step)
        self.assertEqual(2, fast.step().done)
        self.assertEqual([(0, 0, 2), (0, 3, 4)], self.files()[0])

    def test_the_files_of_a_failed_batch_are_removed_by_the_next_step_and_by_the_next_process(self):
        driver = Driver(self)
        self.send(3)
        for repeated in (driver, Driver(self)):
            driver.staged = mock.Mock(side_effect=TransportError("no leader"))
            self.assertRaises(TransportError, driver.step)
            self.assertEqual(1, self.files()[1])
            driver.staged = lambda: None
            repeated.step()
            self.assertEqual(0, self.files()[1])
            self.send(1)
