# SPDX-License-Identifier: Apache-2.0

import psycopg
from oslotest import base

from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.contracts.storage import SqlDatabase
from monasca_common.tests.contracts.storage.scenario import claim, message_id, row
from monasca_common.tests.functional.postgresql import SharedPostgresql


class PostgresqlTestCase(base.BaseTestCase):
    """``self.database`` is an empty database with a schema, on a server that other tests share."""

    def setUp(self):
        super().setUp()
        self.database = self.empty_database()
        self.database.prepare()

    def empty_database(self, **changes):
        settings = StorageSettings("postgresql", self.new_url(), **changes)
        return SqlDatabase(self.addCleanup, settings)

    def new_url(self):
        return self.useFixture(SharedPostgresql()).url

    def session(self):
        """Open a session that the driver does not know, in autocommit."""
        url = self.database.settings.connection.replace("+psycopg", "")
        session = psycopg.connect(url, autocommit=True)
        self.addCleanup(session.close)
        return session


def batch(number, size):
    """Return a claim and its rows, which are the same in each call."""
    offsets = range(number * size, (number + 1) * size)
    values = [row(Kind.METRICS, offset) for offset in offsets]
    return claim(offsets.start, offsets.stop), Rows(Kind.METRICS, values, offsets, tuple(map(message_id, offsets)))
