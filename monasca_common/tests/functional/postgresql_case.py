# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from monasca_common.devbroker.fixtures import SharedPostgresql
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.testing import SqlDatabase


class PostgresqlTestCase(base.BaseTestCase):
    """``self.database`` is an empty database with a schema, on a server that other tests share."""

    def setUp(self):
        super().setUp()
        self.database = self.empty_database()
        self.database.prepare()

    def empty_database(self, **changes):
        settings = StorageSettings("postgresql", self.useFixture(SharedPostgresql()).url, **changes)
        return SqlDatabase(self.addCleanup, settings)
