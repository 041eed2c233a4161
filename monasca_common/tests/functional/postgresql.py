# SPDX-License-Identifier: Apache-2.0
"""The PostgreSQL server that tests share. A test that kills, freezes or fills its server starts a `PostgresqlServer`,
which is ready in half a second."""

import atexit
import functools

from fixtures import Fixture

from monasca_common.tests.postgresql_server import PostgresqlServer


class SharedPostgresql(Fixture):
    """One server for all tests of this process, each with its own database; the first test starts it.

    ``url``: the URL of the test's database. ``server``: shared with other tests, so do not stop it.
    """

    server: PostgresqlServer
    url: str

    def _setUp(self) -> None:
        self.server = _shared_postgresql()
        self.url = self.server.create_database()
        name = self.url.rpartition("/")[2]
        self.addCleanup(self.server.execute, f'DROP DATABASE "{name}" WITH (FORCE)')


@functools.cache
def _shared_postgresql() -> PostgresqlServer:
    server = PostgresqlServer(settings={"fsync": "off"})
    server.start()
    atexit.register(server.stop)
    return server
