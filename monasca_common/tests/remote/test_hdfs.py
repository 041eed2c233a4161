# SPDX-License-Identifier: Apache-2.0
"""Archive, compaction and replay in HDFS, by a client that needs no native library of Hadoop."""

import multiprocessing
import uuid

from oslotest import base

from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.errors import ArchiveDamaged, ArchiveUnavailable
from monasca_common.tests.functional.pipeline import test_archive, test_archive_compaction
from monasca_common.tests.functional.pipeline.archive_case import ArchiveCase, metric
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS
from monasca_common.tests.remote.hdfs import HdfsArchive, shared_cluster
from monasca_common.tests.remote.remote_archive import (
    RemoteCompaction,
    RemoteReplay,
    die_before_placing,
    go_on_under_watch,
)


class HdfsCrashTest(HdfsArchive, test_archive.CrashTest):
    """The command is killed at each fail point, and another process goes on."""


class HdfsCompactionTest(HdfsArchive, RemoteCompaction, test_archive_compaction.CompactionCase):
    pass


class HdfsReplayTest(HdfsArchive, RemoteReplay, ArchiveCase):
    @property
    def authority(self):
        return self.hdfs.url.partition("://")[2]


class HdfsPlacingTest(HdfsArchive, ArchiveCase):
    def test_another_goes_on_with_what_is_committed(self):
        sent = self.publish(metric(number) for number in range(12))
        die_before_placing(self)
        go_on_under_watch(self)
        self.assert_archived_once(sent)


class HdfsStoreTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.store = Store(f"{shared_cluster().url}/{uuid.uuid4().hex}")

    def put(self, path, data=b"data"):
        with self.store.writing(path) as stream:
            stream.write(data)

    def test_a_file_is_placed_once_and_again(self):
        self.put("_staging/a")
        self.store.place("_staging/a", "x/y/b")
        self.store.place("_staging/a", "x/y/b")
        self.assertEqual(b"data", self.store.read_small("x/y/b"))
        self.assertEqual({}, self.store.files("_staging"))
        error = self.assertRaises(ArchiveDamaged, self.store.place, "_staging/a", "c")
        self.assertIn("/c is in the manifest", str(error))

    def test_what_is_listed_and_removed(self):
        self.put("t/one", b"1")
        self.put("t/f/two", b"22")
        self.assertEqual({"one": 1}, self.store.files("t"))
        self.assertEqual(["f"], self.store.folders("t"))
        self.assertEqual(({}, []), (self.store.files("none"), self.store.folders("none")))
        self.assertEqual((2, None), (self.store.size("t/f/two"), self.store.size("none")))
        self.assertIsNone(self.store.read_small("none"))
        for _ in range(2):
            self.store.remove_file("t/one")
            self.store.remove_folder("t")
        self.assertEqual(({}, []), (self.store.files(""), self.store.folders("")))

    def test_what_hdfs_refuses_is_told_in_a_line(self):
        self.put("file")
        error = self.assertRaises(ArchiveUnavailable, self.put, "file/in-it")
        self.assertIn("file (is not a directory)", str(error))
        self.assertNotIn("at org.apache", str(error))

    def test_a_process_forks_beside_a_client_that_nobody_holds(self):
        Store(f"{self.store.location}-other".replace("localhost", "127.0.0.1")).folders("")
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        self.addCleanup(child.kill)
        child.join(PATIENCE_SECONDS)
        self.assertEqual(0, child.exitcode)

    def test_a_name_node_that_is_away_is_told_in_time(self):
        away = Store("hdfs://127.0.0.1:1/archive")
        for call in (away.folders, away.read_small, away.reading):
            error = self.assertRaises(ArchiveUnavailable, call, "topic=t")
            self.assertIn("Connection refused", str(error))
