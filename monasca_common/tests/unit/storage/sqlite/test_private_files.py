# SPDX-License-Identifier: Apache-2.0
"""What the driver makes is for its user alone, whatever the umask; what others made stays as they made it."""

import contextlib
import os
from pathlib import Path

from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.base import Kind
from monasca_common.storage.errors import SchemaMismatch
from monasca_common.storage.testing.scenario import Scenario, measurement
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o777


class PrivateFilesTest(Scenario, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.fresh = self.empty_database()
        self.path = Path(self.folder) / "monasca.sqlite"

    def modes(self):
        return {path.name: mode(path) for path in Path(self.folder).iterdir()}

    def test_the_database_and_every_file_beside_it_are_private(self):
        with umask(0o022):
            self.fresh.prepare()
            self.assertEqual(0o600, mode(self.path))
            self.write(self.fresh.writer(), Kind.METRICS, [measurement()])
            names = {f"monasca.sqlite{suffix}" for suffix in ("", "-wal", "-shm", ".writer-lock")}
            self.assertEqual(dict.fromkeys(names, 0o600), self.modes())

    def test_a_file_that_was_there_keeps_its_permissions(self):
        with umask(0o022):
            self.path.touch(mode=0o644)
            self.fresh.prepare()
            self.assertEqual(0o644, mode(self.path))

    def test_the_folder_keeps_its_permissions(self):
        os.chmod(self.folder, 0o755)
        self.fresh.prepare()
        self.assertEqual(0o755, mode(Path(self.folder)))

    def test_the_target_of_a_link_is_private(self):
        target = self.path.with_name("elsewhere.sqlite")
        self.path.symlink_to(target)
        with umask(0o022):
            self.fresh.prepare()
            self.assertEqual(0o600, mode(target))

    def test_a_job_that_finds_no_database_leaves_no_file_that_others_may_read(self):
        with umask(0o022):
            self.assertRaises(SchemaMismatch, OffsetStore(f"sqlite:///{self.path}").check)
            self.assertEqual({"monasca.sqlite": 0o600}, self.modes())
