# SPDX-License-Identifier: Apache-2.0
from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile, FileState
from monasca_common.pipeline.errors import AlreadyArchived
from monasca_common.pipeline.source.offset_store import OffsetRange, Source
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase

SOURCE = Source("spark-archive", "metrics", "first-id")


def file(hour, first, last, *, partition=0, batch="ab"):
    return ArchivedFile("metrics", hour * HOUR_MS, Offsets(partition, first, last), 3, 100, batch, f"_staging/{first}")


class ManifestTest(DatabaseCase):
    def add(self, *files, source=SOURCE):
        with self.offset_store.writing() as connection:
            manifest.lock(connection, source)
            manifest.add(connection, source, files, 5)

    def find(self, state, source=SOURCE):
        with self.offset_store.reading() as connection:
            return manifest.find(connection, source, state)

    def change(self, change, *arguments, source=SOURCE):
        with self.offset_store.writing() as connection:
            return change(connection, source, *arguments)

    def test_a_file_is_committed_then_placed_then_expired_then_removed(self):
        one, other = file(1, 0, 9), file(2, 5, 8)
        self.add(other, one)
        self.assertEqual([one, other], self.find(FileState.COMMITTED))
        self.change(manifest.set_placed, ["ab"])
        self.assertEqual(([], [one, other]), (self.find(FileState.COMMITTED), self.find(FileState.PLACED)))
        self.assertEqual(1, self.change(manifest.set_expired, 2 * HOUR_MS))
        self.assertEqual(([one], [other]), (self.find(FileState.EXPIRED), self.find(FileState.PLACED)))
        self.change(manifest.remove_expired, [one, other])
        self.assertEqual(([], [other]), (self.find(FileState.EXPIRED), self.find(FileState.PLACED)))

    def test_a_file_that_is_not_placed_does_not_expire(self):
        self.add(file(1, 0, 9))
        self.assertEqual(0, self.change(manifest.set_expired, 100 * HOUR_MS))

    def test_each_batch_is_placed_separately(self):
        self.add(file(1, 0, 9), file(1, 10, 19, batch="cd"))
        self.change(manifest.set_placed, ["cd"])
        self.assertEqual([file(1, 0, 9)], self.find(FileState.COMMITTED))

    def test_each_group_and_topic_has_its_own_manifest(self):
        self.add(file(1, 0, 9))
        for source in (Source("other", "metrics", None), Source("spark-archive", "log", None)):
            self.assertEqual([], self.find(FileState.COMMITTED, source))

    def test_offsets_are_archived_once(self):
        self.add(file(1, 10, 19))
        for start, end in ((0, 10), (20, 30)):
            self.change(manifest.check_new, [OffsetRange(0, start, end), OffsetRange(1, 0, 100)])
        for start, end in ((0, 11), (12, 13), (19, 30), (0, 100)):
            ranges = [OffsetRange(0, start, end)]
            error = self.assertRaises(AlreadyArchived, self.change, manifest.check_new, ranges)
            self.assertIn("moves it to 20", str(error))

    def test_a_recreated_topic_has_its_own_offsets(self):
        self.add(file(1, 10, 19))
        again = Source("spark-archive", "metrics", "second-id")
        self.change(manifest.check_new, [OffsetRange(0, 10, 20)], source=again)
        self.add(file(1, 10, 19, batch="cd"), source=again)
        unknown = Source("spark-archive", "metrics", None)
        self.assertRaises(AlreadyArchived, self.change, manifest.check_new, [OffsetRange(0, 10, 20)], source=unknown)

    def test_a_path_contains_hour_and_offsets(self):
        path = "topic=metrics/date=1970-01-01/hour=2/p00001-000000000000000005-000000000000000008-ab.parquet"
        self.assertEqual(path, file(2, 5, 8, partition=1).path)
