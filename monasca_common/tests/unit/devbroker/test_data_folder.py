# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import fixtures
from oslotest import base

from monasca_common.devbroker.data_folder import DataFolder
from monasca_common.devbroker.errors import BrokerFailed, BrokerTooSlow, InvalidCluster
from monasca_common.devbroker.security import Security


class StorageTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "data"

    def prepare(self, *, nodes=1):
        DataFolder(self.folder, nodes, Security()).prepare()

    def test_a_file_in_the_folders_place_is_refused_with_the_remedy(self):
        self.folder.write_text("")
        error = self.assertRaises(InvalidCluster, self.prepare)
        self.assertIn("cannot hold the data (File exists): name a folder", str(error))

    def test_a_folder_that_holds_other_files_is_refused_and_left_as_it_is(self):
        self.folder.mkdir()
        (self.folder / "thesis.txt").write_text("years of work")
        self.assertRaises(InvalidCluster, self.prepare)
        self.assertEqual([self.folder / "thesis.txt"], list(self.folder.iterdir()))

    def test_a_folder_that_was_made_for_another_cluster_is_refused(self):
        self.prepare(nodes=1)
        self.prepare(nodes=1)
        self.assertRaises(InvalidCluster, self.prepare, nodes=3)

    def test_a_format_that_takes_too_long_is_given_up_with_the_remedy(self):
        slow = [sys.executable, "-c", "import time; time.sleep(60)"]
        storage = DataFolder(self.folder, 1, Security())
        storage.prepare()

        error = self.assertRaises(BrokerTooSlow, storage.format, slow, 0.2)

        self.assertIn("did not format its storage within 0.2 s: give a slow machine longer", str(error))
        self.assertIn("broker start --timeout", str(error))

    def test_a_password_is_on_no_command_line_and_in_no_error(self):
        said = self.folder.parent / "said"
        program = (
            "import pathlib, sys;"
            f"given = pathlib.Path(sys.argv[-1].removeprefix('@')); text = given.read_text();"
            f"pathlib.Path({str(said)!r}).write_text(f'{{sys.argv}} {{given.stat().st_mode & 0o777:o}}');"
            "sys.exit('refused: ' + text)"
        )
        storage = DataFolder(self.folder, 1, Security(sasl=True, users={"alice": "sesame,=]"}))
        storage.prepare()

        error = self.assertRaises(BrokerFailed, storage.format, [sys.executable, "-c", program], 30)

        self.assertIn("--add-scram\nSCRAM-SHA-512=[name=alice,iterations=4096,salt=", str(error))
        self.assertNotIn("sesame", str(error))
        self.assertRegex(said.read_text(), r"'@[^']+'\] 600$")
        self.assertNotIn("SCRAM", said.read_text())
        self.assertEqual([], [*self.folder.rglob("format-*")])
