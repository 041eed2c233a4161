# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.runtime.temporary_folder import temporary_folder


class TestTemporaryFolder(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.all = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("tempfile.tempdir", str(self.all)))

    def test_the_folder_is_removed_after_the_block(self):
        with temporary_folder("ours-") as folder:
            (folder / "counts.db").touch()
            self.assertEqual(0o700, folder.stat().st_mode & 0o777)
        self.assertEqual([], list(self.all.iterdir()))

    def test_a_forked_child_does_not_remove_the_folder(self):
        with temporary_folder("ours-") as folder:
            self.useFixture(fixtures.MockPatch("os.getpid", lambda: 0))
        self.assertTrue(folder.exists())
