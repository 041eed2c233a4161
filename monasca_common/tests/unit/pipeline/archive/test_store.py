# SPDX-License-Identifier: Apache-2.0
import errno
import io
import sys
from pathlib import Path
from typing import ClassVar
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.archive import store
from monasca_common.pipeline.archive.batch import check_owner
from monasca_common.pipeline.archive.layout import Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.archive.placement import Placement
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.errors import ArchiveDamaged, ArchiveUnavailable


def _away(_self, path, **_named):
    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused", path)


class _Hdfs:
    """What hdfs-native has of fsspec, which takes some errors for answers (`AbstractFileSystem`)."""

    protocol = "hdfs"
    _all: ClassVar = {"/archive/t": None, "/archive/t/one": b"data", "/archive/t/f": None}

    def __init__(self, *_where, **_options):
        pass

    def info(self, path, **_named):
        if path not in self._all:
            raise FileNotFoundError(path)
        data = self._all[path]
        return {"name": path, "size": len(data or b""), "type": "directory" if data is None else "file"}

    def ls(self, path, **_named):
        return [self.info(each) for each in self._all if each.rpartition("/")[0] == path]

    def exists(self, path):
        try:
            return bool(self.info(path))
        except FileNotFoundError:
            return False

    def isfile(self, path):
        try:
            return self.info(path)["type"] == "file"
        except Exception:
            return False

    def isdir(self, path):
        try:
            return self.info(path)["type"] == "directory"
        except OSError:
            return False

    def find(self, path, **_named):
        try:
            return {each["name"]: each for each in self.ls(path)}
        except OSError:
            return {}

    def open(self, path, mode):
        return io.BytesIO(self._all[path])


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

    def test_who_archives_here_is_noted_again_where_the_disk_was_too_full_for_it(self):
        (self.folder / "_archive").write_bytes(b"")
        check_owner(self.store, "g")
        self.assertEqual(b"g", self.store.read_small("_archive"))
        check_owner(self.store, "g")
        error = self.assertRaises(ConfigurationError, check_owner, self.store, "other")
        self.assertIn("that of group_id 'g'", str(error))

    def test_files_are_exchanged_at_once(self):
        for path in ("t/f/a", "t/f/b", "t/f/kept", "_staging/new", "_staging/placed"):
            self.put(path, path.encode())
        self.store.place("_staging/placed", "t/f/there")
        new = {"t/f/c": "_staging/new", "t/f/there": "_staging/placed"}
        self.assertTrue(self.store.exchange("t/f", new, {"t/f/a", "t/f/b"}))
        self.assertEqual(["t/f/c", "t/f/kept", "t/f/there"], self.files("t"))
        self.assertEqual(b"_staging/new", self.store.read_small("t/f/c"))
        self.assertEqual([self.folder], list(self.folder.parent.glob(f"*{self.folder.name}*")))

    def test_a_file_system_that_exchanges_nothing_is_left_as_it_is(self):
        self.put("t/f/a")
        self.put("_staging/new")
        for code in (errno.EINVAL, errno.ENOSYS, errno.EXDEV):
            with mock.patch.object(store, "_exchange", side_effect=OSError(code, "no")):
                self.assertFalse(self.store.exchange("t/f", {"t/f/c": "_staging/new"}, {"t/f/a"}))
        self.assertEqual(["t/f/a"], self.files("t"))
        self.assertEqual([self.folder], list(self.folder.parent.glob(f"*{self.folder.name}*")))

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
        for location in ("relative/path", "nowhere://user:secret@host/x", "s3://", "hdfs://user:secret@host/x"):
            error = self.assertRaises(ConfigurationError, Store, location)
            self.assertNotIn("secret", str(error))

    def test_a_bucket_is_named_as_hadoop_names_it_too(self):
        for scheme in ("s3", "s3a"):
            found = Store(f"{scheme}://bucket/archive?region=us-east-1&endpoint_override=127.0.0.1:1")
            self.assertEqual("bucket/archive/x", found._full("x"))
            self.assertEqual(5 * 1024**3, found.largest_bytes)
        self.assertIsNone(self.store.largest_bytes)

    def test_hdfs_is_refused_with_what_is_to_be_written_or_installed(self):
        with mock.patch.dict(sys.modules, {"hdfs_native.fsspec": None}):
            error = self.assertRaises(ConfigurationError, Store, "hdfs://host:8020/archive")
        self.assertIn("install monasca-common[hdfs]", str(error))
        error = self.assertRaises(ConfigurationError, Store, "hdfs://host:port/archive")
        self.assertIn("write hdfs://host:port/folder, or hdfs://nameservice/folder", str(error))

    def hdfs(self):
        module = mock.Mock(HdfsFileSystem=_Hdfs)
        with mock.patch.dict(sys.modules, {"hdfs_native": mock.Mock(fsspec=module), "hdfs_native.fsspec": module}):
            return Store("hdfs://host:8020/archive")

    def test_hdfs_that_is_away_is_neither_a_missing_file_nor_an_empty_folder(self):
        store = self.hdfs()
        with mock.patch.object(_Hdfs, "info", _away), mock.patch.object(_Hdfs, "ls", _away):
            for call in (store.read_small, store.reading, store.files, store.folders):
                self.assertIn("refused", str(self.assertRaises(ArchiveUnavailable, call, "t")))
        with mock.patch.object(_Hdfs, "ls", _away):  # it goes away between the two questions
            self.assertRaises(ArchiveUnavailable, store.files, "t")

    def test_what_hdfs_has_is_listed_and_read(self):
        store = self.hdfs()
        self.assertEqual(({"one": 4}, ["f"]), (store.files("t"), store.folders("t")))
        self.assertEqual(({}, []), (store.files("none"), store.folders("none")))
        self.assertEqual((b"data", None, None), tuple(map(store.read_small, ("t/one", "t/none", "t/f"))))
        self.assertEqual(b"ta", store.reading("t/one").read_at(2, 2))
        self.assertRaises(ArchiveUnavailable, store.files, "t/one")

    def test_what_hdfs_refuses_is_told_without_its_java(self):
        self.store._files = mock.Mock()
        self.store._files.get_file_info.side_effect = RuntimeError('RPCError("Why", "it is so\\n\\tat org.apache")')
        error = self.assertRaises(ArchiveUnavailable, self.store.size, "x")
        self.assertIn("it is so", str(error))
        self.assertNotIn("org.apache", str(error))

    def test_what_cannot_be_moved_is_refused_before_it_is_committed(self):
        self.put("_staging/a")
        file = ArchivedFile("t", 0, Offsets(0, 0, 1), 2, 4, "b", "_staging/a")
        placing = Placement(self.store, mock.sentinel.offset_store)
        placing.check_staged([file])
        self.store.largest_bytes = 3
        error = self.assertRaises(ConfigurationError, placing.check_staged, [file])
        for part in ("_staging/a has 4 bytes", "more than 3", "max_offsets_per_trigger"):
            self.assertIn(part, str(error))
