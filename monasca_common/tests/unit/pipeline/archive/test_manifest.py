# SPDX-License-Identifier: Apache-2.0
from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile, FileState
from monasca_common.pipeline.errors import AlreadyArchived, StagingLost
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

    def test_a_file_goes_from_committed_to_placed_to_expired_to_nothing(self):
        one, other = file(1, 0, 9), file(2, 5, 8)
        self.add(other, one)
        self.assertEqual([one, other], self.find(FileState.COMMITTED))
        self.change(manifest.set_placed, ["ab"])
        self.assertEqual(([], [one, other]), (self.find(FileState.COMMITTED), self.find(FileState.PLACED)))
        self.assertEqual(1, self.change(manifest.set_expired, 2 * HOUR_MS))
        self.assertEqual(([one], [other]), (self.find(FileState.EXPIRED), self.find(FileState.PLACED)))
        self.change(manifest.remove, [one, other], FileState.EXPIRED)
        self.assertEqual(([], [other]), (self.find(FileState.EXPIRED), self.find(FileState.PLACED)))

    def test_a_file_in_place_is_replaced_once(self):
        one, other, new = file(1, 0, 9), file(1, 10, 19), file(1, 0, 19, batch="cd")
        self.add(one, other)
        self.assertRaises(StagingLost, self.change, manifest.replace, [one])  # it is not in place yet
        self.change(manifest.set_placed, ["ab"])
        self.assertEqual({}, self.change(manifest.states, HOUR_MS))
        self.change(manifest.replace, [one, other])
        self.add(new)
        states = {one.name: FileState.REPLACED, other.name: FileState.REPLACED, new.name: FileState.COMMITTED}
        self.assertEqual((states, {}), (self.change(manifest.states, HOUR_MS), self.change(manifest.states, 0)))
        self.change(manifest.set_placed, ["cd"], 2 * HOUR_MS)
        self.assertEqual([new], self.find(FileState.COMMITTED))
        self.change(manifest.set_placed, ["cd"], HOUR_MS)
        self.change(manifest.remove, [one, other, new], FileState.REPLACED)
        self.assertEqual(([], [new]), (self.find(FileState.REPLACED), self.find(FileState.PLACED)))
        self.assertRaises(StagingLost, self.change, manifest.replace, [one])

    def test_what_is_not_in_place_yet_does_not_expire(self):
        self.add(file(1, 0, 9))
        self.assertEqual(0, self.change(manifest.set_expired, 100 * HOUR_MS))

    def test_batches_are_placed_each_for_itself(self):
        self.add(file(1, 0, 9), file(1, 10, 19, batch="cd"))
        self.change(manifest.set_placed, ["cd"])
        self.assertEqual([file(1, 0, 9)], self.find(FileState.COMMITTED))

    def test_groups_and_topics_have_manifests_of_their_own(self):
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

    def test_a_topic_that_was_made_again_has_offsets_of_its_own(self):
        self.add(file(1, 10, 19))
        again = Source("spark-archive", "metrics", "second-id")
        self.change(manifest.check_new, [OffsetRange(0, 10, 20)], source=again)
        self.add(file(1, 10, 19, batch="cd"), source=again)
        unknown = Source("spark-archive", "metrics", None)
        self.assertRaises(AlreadyArchived, self.change, manifest.check_new, [OffsetRange(0, 10, 20)], source=unknown)

    def test_a_path_has_hour_and_offsets(self):
        path = "topic=metrics/date=1970-01-01/hour=2/p00001-000000000000000005-000000000000000008-ab.parquet"
        self.assertEqual(path, file(2, 5, 8, partition=1).path)
