# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.quickstart import services
from monasca_common.quickstart.services import ServiceFailed, make_folder, run_command


def mode(path):
    return path.stat().st_mode & 0o777


class RunCommandTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.configuration = Path(self.useFixture(fixtures.TempDir()).join("none.conf"))

    def test_a_command_that_fails_is_told_with_what_it_said(self):
        error = self.assertRaises(ServiceFailed, run_command, "db", "upgrade", configuration=self.configuration)
        self.assertIn("monasca-common db upgrade: ", str(error))
        self.assertIn(str(self.configuration), str(error))

    def test_a_command_that_does_not_end_is_given_up(self):
        self.useFixture(fixtures.MockPatchObject(services, "_COMMAND_SECONDS", 0.0))
        error = self.assertRaises(ServiceFailed, run_command, "db", "upgrade", configuration=self.configuration)
        self.assertEqual("monasca-common db upgrade took longer than 0 s", str(error))


class FolderTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.above = Path(self.useFixture(fixtures.TempDir()).path)
        os.chmod(self.above, 0o755)
        self.addCleanup(os.umask, os.umask(0o022))

    def test_folders_that_are_made_are_private(self):
        make_folder(self.above / "kept" / "data")
        self.assertEqual([0o755, 0o700, 0o700], [mode(self.above / each) for each in ("", "kept", "kept/data")])

    def test_a_folder_that_exists_keeps_its_permissions(self):
        (self.above / "kept").mkdir()
        make_folder(self.above / "kept")
        self.assertEqual(0o755, mode(self.above / "kept"))
