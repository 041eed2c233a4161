# SPDX-License-Identifier: Apache-2.0

import contextlib
import time
from collections.abc import Mapping
from types import MappingProxyType

import psycopg
from oslotest import base

from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.contracts.storage import SqlDatabase
from monasca_common.tests.contracts.storage.scenario import claim, message_id, row
from monasca_common.tests.functional.postgresql import PostgresqlFixture, SharedPostgresql
from monasca_common.tests.waiting import Waiting

RETRY_SECONDS = 0.05


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


class OwnServerTestCase(Waiting, PostgresqlTestCase):
    """``self.server`` belongs to the test, which can kill, freeze and fill it."""

    settings: Mapping[str, str] = MappingProxyType({})
    write_timeout_seconds = 30.0

    def setUp(self):
        self.server = None
        super().setUp()

    def new_url(self):
        if self.server is None:
            self.server = self.useFixture(PostgresqlFixture(settings=self.settings)).server
        return self.server.create_database()

    def empty_database(self, **changes):
        return super().empty_database(**{"write_timeout_seconds": self.write_timeout_seconds, **changes})

    def store(self, writer, its_claim, rows):
        """Write, and repeat the write while the database is unavailable, because a busy one can exceed a time-out.
        Return the result."""
        message = []

        def stored():
            try:
                message.append(writer.write(its_claim, rows))
            except StorageUnavailable:
                return False
            return True

        self.wait_until(stored, "a write")
        return message[0]


def batch(number, size, kind=Kind.METRICS):
    """Return a claim and its rows, which are the same in each call."""
    offsets = range(number * size, (number + 1) * size)
    values = [row(kind, offset) for offset in offsets]
    return claim(offsets.start, offsets.stop), Rows(kind, values, offsets, tuple(map(message_id, offsets)))


def write_until_stored(database, batches, *, stop=lambda: False):
    """Store each batch like a persister, and return how often the database was unavailable."""
    failures = 0
    writer = None
    with contextlib.ExitStack() as opened:
        for its_claim, rows in batches:
            while not stop():
                try:
                    if writer is None:
                        writer = opened.enter_context(database.storage().open_writer())
                    writer.write(its_claim, rows)
                    break
                except StorageUnavailable:
                    failures += 1
                    time.sleep(RETRY_SECONDS)
    return failures
