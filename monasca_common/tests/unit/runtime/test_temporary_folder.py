# SPDX-License-Identifier: Apache-2.0
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.runtime import temporary_folder


class TestTemporaryFolder(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.all = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("tempfile.tempdir", str(self.all)))

    def left_behind(self, name):
        """What a process leaves that is killed: its lock has ended with it."""
        folder = self.all / name
        folder.mkdir()
        for file in ("lock", "counts.db"):
            (folder / file).touch()
        return folder

    def test_it_ends_with_its_block(self):
        with temporary_folder("ours-") as folder:
            (folder / "counts.db").touch()
            self.assertEqual(0o700, folder.stat().st_mode & 0o777)
        self.assertEqual([], list(self.all.iterdir()))

    def test_the_folder_of_a_killed_process_is_removed(self):
        ours = self.left_behind("ours-killed")
        others = [self.left_behind("others-killed"), self.all / "ours-of-somebody"]
        others[1].mkdir()
        with temporary_folder("ours-"):
            self.assertFalse(ours.exists())
            self.assertEqual([True, True], [each.exists() for each in others])

    def test_a_folder_of_a_living_process_stays(self):
        with temporary_folder("ours-") as first, temporary_folder("ours-") as second:
            self.assertTrue(first.exists())
            self.assertNotEqual(first, second)

    def test_a_half_removed_folder_is_removed_by_the_next_process(self):
        folder = self.left_behind("ours-killed")
        (folder / "deeper").mkdir()
        for number in range(20):
            (folder / f"block{number}").touch()
            (folder / "deeper" / f"block{number}").touch()
        program = (
            "import os, signal\n"
            "from monasca_common.runtime import temporary_folder\n"
            "unlink, gone = os.unlink, []\n"
            "def killed(*of, **named):\n"
            "    unlink(*of, **named)\n"
            "    gone.append(of)\n"
            "    if len(gone) == 41: os.kill(os.getpid(), signal.SIGKILL)\n"  # of the 42 files
            "os.unlink = killed\n"
            "with temporary_folder('ours-'): pass\n"
        )
        environment = {**os.environ, "TMPDIR": str(self.all)}
        self.assertEqual(-9, subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode)
        self.assertEqual([folder], list(self.all.iterdir()))
        with temporary_folder("ours-"):
            self.assertFalse(folder.exists())

    def test_where_a_link_leads_nothing_is_removed(self):
        elsewhere = Path(self.useFixture(fixtures.TempDir()).path)
        (elsewhere / "lock").touch()
        (self.all / "ours-link").symlink_to(elsewhere)
        with temporary_folder("ours-"):
            self.assertTrue((elsewhere / "lock").exists())

    def test_a_folder_of_another_user_is_kept(self):
        folder = self.left_behind("ours-killed")
        self.useFixture(fixtures.MockPatch("os.geteuid", lambda: os.getuid() + 1))
        with temporary_folder("ours-"):
            self.assertTrue(folder.exists())

    def test_a_folder_removed_before_its_lock_is_created_again(self):
        made, flock = [], fcntl.flock

        def another_is_quicker(lock, how):
            if not made:
                made.append(Path(os.readlink(f"/proc/self/fd/{lock}")))
                made[0].unlink()
                made[0].parent.rmdir()
            flock(lock, how)

        self.useFixture(fixtures.MockPatch("fcntl.flock", another_is_quicker))
        with temporary_folder("ours-") as folder:
            self.assertTrue(folder.exists())
            self.assertNotEqual(made[0].parent, folder)
