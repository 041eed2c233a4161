# SPDX-License-Identifier: Apache-2.0
import pathlib

import fixtures
from oslotest import base

from monasca_common.devbroker.errors import InvalidCluster
from monasca_common.devbroker.security import Security
from monasca_common.devbroker.storage import Storage


class StorageTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "data"

    def prepare(self, *, nodes=1):
        Storage(self.folder, nodes, Security()).prepare()

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
