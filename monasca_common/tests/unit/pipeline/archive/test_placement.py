# SPDX-License-Identifier: Apache-2.0
from unittest import mock

from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.archive.placement import Expiry
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase

SOURCE = Source("spark-archive", "metrics", None)
NOW_MS = 100 * HOUR_MS


class ExpiryTest(DatabaseCase):
    def setUp(self):
        super().setUp()
        file = ArchivedFile("metrics", 0, Offsets(0, 0, 9), 3, 100, "ab", "_staging/0")
        with self.offset_store.writing() as connection:
            manifest.add(connection, SOURCE, [file], 5)
            manifest.set_placed(connection, SOURCE, ["ab"])
        self.store = mock.Mock(remove_empty_folder=lambda folder: False)
        self.expiry = Expiry(self.offset_store, self.store, retention_days=1)

    def test_a_removal_that_failed_is_tried_again_immediately(self):
        self.store.remove_file.side_effect = [OSError("no storage"), None]
        self.assertRaises(OSError, self.expiry.apply, SOURCE, NOW_MS)
        self.assertEqual(1, self.expiry.apply(SOURCE, NOW_MS))

    def test_an_expiry_that_failed_is_tried_again_immediately(self):
        with mock.patch.object(self.offset_store, "writing", side_effect=StorageUnavailable("unavailable")):
            self.assertRaises(StorageUnavailable, self.expiry.apply, SOURCE, NOW_MS)
        self.assertEqual(1, self.expiry.apply(SOURCE, NOW_MS))
        self.assertEqual(0, self.expiry.apply(SOURCE, NOW_MS + HOUR_MS - 1))

    def test_files_expire_after_the_clock_went_back(self):
        self.expiry.apply(Source("other", "metrics", None), NOW_MS + 100 * HOUR_MS)
        self.assertEqual(1, self.expiry.apply(SOURCE, NOW_MS))
