# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.archive.batch import check_owner
from monasca_common.pipeline.archive.layout import Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.archive.placement import Placement
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.errors import ArchiveDamaged, ArchiveUnavailable


class StoreTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = Store(str(self.folder))

    def put(self, path, data=b"data"):
        with self.store.writing(path) as stream:
            stream.write(data)

    def files(self, folder):
        paths = (self.folder / folder).rglob("*")
        return sorted(str(path.relative_to(self.folder)) for path in paths if path.is_file())

    def test_placing_a_file_twice_has_one_effect(self):
        self.put("_staging/a")
        self.store.place("_staging/a", "x/y/b")
        self.store.place("_staging/a", "x/y/b")
        self.assertEqual(b"data", (self.folder / "x/y/b").read_bytes())
        self.assertEqual({}, self.store.files("_staging"))

    def test_placing_a_missing_file_fails_with_its_path(self):
        error = self.assertRaises(ArchiveDamaged, self.store.place, "_staging/a", "b")
        self.assertIn(f"{self.folder}/b", str(error))

    def test_listings_have_names_and_sizes(self):
        self.put("t/one", b"1")
        self.put("t/f/two", b"22")
        self.assertEqual({"one": 1}, self.store.files("t"))
        self.assertEqual(["f"], self.store.folders("t"))
        self.assertEqual(({}, []), (self.store.files("none"), self.store.folders("none")))
        self.assertEqual((2, None), (self.store.size("t/f/two"), self.store.size("none")))
        self.assertEqual((b"22", None), (self.store.read_small("t/f/two"), self.store.read_small("none")))

    def test_an_empty_owner_file_is_written_again(self):
        (self.folder / "_archive").write_bytes(b"")
        check_owner(self.store, "g")
        self.assertEqual(b"g", self.store.read_small("_archive"))
        check_owner(self.store, "g")
        error = self.assertRaises(ConfigurationError, check_owner, self.store, "other")
        self.assertIn("belongs to group_id 'g'", str(error))

    def test_removing_a_missing_file_or_folder_is_not_an_error(self):
        self.put("t/one")
        for _ in range(2):
            self.store.remove_file("t/one")
            self.store.remove_folder("t")
        self.assertEqual([], list(self.folder.iterdir()))

    def test_only_an_empty_folder_is_removed(self):
        self.put("t/f/one")
        self.assertFalse(self.store.remove_empty_folder("t/f"))
        self.store.remove_file("t/f/one")
        for _ in range(2):
            self.assertTrue(self.store.remove_empty_folder("t/f"))
        self.assertEqual([], self.store.folders("t"))

    def test_errors_name_the_path(self):
        (self.folder / "in-the-way").write_text("")
        error = self.assertRaises(ArchiveUnavailable, self.put, "in-the-way/file")
        self.assertIn("in-the-way", str(error))

    def test_a_file_uri_is_a_location(self):
        self.put("one")
        self.assertEqual(4, Store(f"file://{self.folder}").size("one"))

    def test_an_invalid_location_is_refused_without_its_password(self):
        for location in ("relative/path", "nowhere://user:secret@host/x", "s3://", "hdfs://user:secret@host/x"):
            error = self.assertRaises(ConfigurationError, Store, location)
            self.assertNotIn("secret", str(error))

    def test_s3a_has_the_same_meaning_as_s3(self):
        for scheme in ("s3", "s3a"):
            found = Store(f"{scheme}://bucket/archive?region=us-east-1&endpoint_override=127.0.0.1:1")
            with found._at("x") as full:
                self.assertEqual("bucket/archive/x", full)
            self.assertEqual(5 * 1024**3, found.largest_bytes)
        self.assertIsNone(self.store.largest_bytes)

    def test_a_file_too_large_to_move_is_refused_before_the_commit(self):
        self.put("_staging/a")
        file = ArchivedFile("t", 0, Offsets(0, 0, 1), 2, 4, "b", "_staging/a")
        placing = Placement(self.store, mock.sentinel.offset_store)
        placing.check_staged([file])
        self.store.largest_bytes = 3
        error = self.assertRaises(ConfigurationError, placing.check_staged, [file])
        for part in ("_staging/a has 4 bytes", "more than 3", "max_offsets_per_trigger"):
            self.assertIn(part, str(error))
