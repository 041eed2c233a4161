# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.archive import layout
from monasca_common.pipeline.archive.reader import Archive, Selection
from monasca_common.pipeline.jobs.job import JobWatcher
from monasca_common.pipeline.replay.batch import replay
from monasca_common.pipeline.replay.senders import MatchingCount


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
