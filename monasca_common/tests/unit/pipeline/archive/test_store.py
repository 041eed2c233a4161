# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.archive import store
from monasca_common.pipeline.archive.archiving import check_owner
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

    def test_a_file_is_placed_once_and_again(self):
        self.put("_staging/a")
        self.store.place("_staging/a", "x/y/b")
        self.store.place("_staging/a", "x/y/b")
        self.assertEqual(b"data", (self.folder / "x/y/b").read_bytes())
        self.assertEqual({}, self.store.files("_staging"))

    def test_a_file_that_is_nowhere_is_told(self):
        error = self.assertRaises(ArchiveDamaged, self.store.place, "_staging/a", "b")
        self.assertIn(f"{self.folder}/b", str(error))

    def test_what_is_listed(self):
        self.put("t/one", b"1")
        self.put("t/f/two", b"22")
        self.assertEqual({"one": 1}, self.store.files("t"))
        self.assertEqual(["f"], self.store.folders("t"))
        self.assertEqual(({}, []), (self.store.files("none"), self.store.folders("none")))
        self.assertEqual((2, None), (self.store.size("t/f/two"), self.store.size("none")))
        self.assertEqual((b"22", None), (self.store.read_small("t/f/two"), self.store.read_small("none")))

    def test_files_below_a_folder_are_told_by_their_paths(self):
        for path in ("t/one", "t/f/two", "u/three"):
            self.put(path)
        self.assertEqual(["t/f/two", "t/one"], self.store.files_below("t"))
        self.assertEqual([], self.store.files_below("none"))

    def test_who_archives_here_is_noted_again_where_the_disk_was_too_full_for_it(self):
        (self.folder / "_archive").write_bytes(b"")
        check_owner(self.store, "g")
        self.assertEqual(b"g", self.store.read_small("_archive"))
        check_owner(self.store, "g")
        error = self.assertRaises(ConfigurationError, check_owner, self.store, "other")
        self.assertIn("that of group_id 'g'", str(error))

    def test_to_remove_what_is_gone_is_no_error(self):
        self.put("t/one")
        for _ in range(2):
            self.store.remove_file("t/one")
            self.store.remove_folder("t")
        self.assertEqual([], list(self.folder.iterdir()))

    def test_a_folder_goes_when_it_is_empty(self):
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

    def test_a_uri_is_a_location_as_well(self):
        self.put("one")
        self.assertEqual(4, Store(f"file://{self.folder}").size("one"))

    def test_what_can_be_no_location_is_refused_without_its_password(self):
        for location in ("relative/path", "nowhere://user:secret@host/x", "s3://"):
            error = self.assertRaises(ConfigurationError, Store, location)
            self.assertNotIn("secret", str(error))

    def test_spark_is_told_the_same_place_without_logins(self):
        self.assertEqual(f"file://{self.folder}/a/b", self.store.spark_uri("a/b"))
        self.assertEqual(f"file://{self.folder}/a", Store(f"file://{self.folder}").spark_uri("a"))
        with mock.patch.object(store, "_open", return_value=(mock.Mock(type_name="s3"), "bucket/x")):
            for location, uri in (
                ("s3://bucket/x", "s3a://bucket/x/a"),
                ("s3://user:secret@bucket/x/?region=eu", "s3a://bucket/x/a"),
                ("gs://anonymous@bucket/x", "gs://bucket/x/a"),
                ("abfss://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net/x/a"),
                ("hdfs://name:8020/x", "hdfs://name:8020/x/a"),
            ):
                self.assertEqual(uri, Store(location).spark_uri("a"))
