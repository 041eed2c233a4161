# SPDX-License-Identifier: Apache-2.0
from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.backfill.history import History
from monasca_common.pipeline.errors import RecordsLost
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase

FORMER = Source("spark-archive", "metrics", "first-id")
SOURCE = Source("spark-archive", "metrics", "second-id")


class HistoryTest(DatabaseCase):
    def records(self, from_hour, source=SOURCE):
        history = History(None, "/nowhere", source, self.offset_store, 0)
        return history.records(from_hour * HOUR_MS, (from_hour + 1) * HOUR_MS, 0)

    def test_a_range_with_records_of_a_topic_that_was_recreated_is_refused(self):
        file = ArchivedFile("metrics", HOUR_MS, Offsets(0, 10, 19), 10, 100, "ab", "_staging/a")
        with self.offset_store.writing() as connection:
            manifest.add(connection, FORMER, [file], 0)
            manifest.set_placed(connection, FORMER, ["ab"])
        self.offset_store.begin(SOURCE, {0: 5})
        self.assertIn("choose a later range", str(self.assertRaises(RecordsLost, self.records, 1)))
        self.assertEqual((None, {0: 5}), self.records(2))
