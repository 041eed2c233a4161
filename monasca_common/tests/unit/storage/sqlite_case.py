# SPDX-License-Identifier: Apache-2.0

import fixtures
from oslotest import base

from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.testing import SqlDatabase


class SqliteTestCase(base.BaseTestCase):
    """``self.database`` is an empty file with a schema."""

    def setUp(self):
        super().setUp()
        self.database = self.empty_database()
        self.database.prepare()

    def empty_database(self, **changes):
        self.folder = self.useFixture(fixtures.TempDir()).path
        settings = StorageSettings("sqlite", f"sqlite:///{self.folder}/monasca.sqlite", **changes)
        return SqlDatabase(self.addCleanup, settings)
