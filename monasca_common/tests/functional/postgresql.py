# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL servers for tests."""

import atexit
import tempfile
import threading
from typing import Any

from fixtures import Fixture, MonkeyPatch

from monasca_common.tests.postgresql_server import PostgresqlServer

# oslotest gives every test a temporary folder that is removed after the test. Servers that outlive a test use the
# original folder.
_TEMPORARY = tempfile.gettempdir()
_starting = threading.Lock()


class PostgresqlFixture(Fixture):
    """A separate server, for a test that kills, freezes or fills its server. It is ready in half a second."""

    def __init__(self, **arguments: Any) -> None:
        self.server = PostgresqlServer(**arguments)

    def _setUp(self) -> None:
        self.addCleanup(self.server.stop)
        # If root starts the server, it runs as another user, who cannot read the folders of a test.
        with MonkeyPatch("tempfile.tempdir", _TEMPORARY):
            self.server.start()


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


_postgresql: list[PostgresqlServer] = []


def _shared_postgresql() -> PostgresqlServer:
    with _starting:
        if not _postgresql:
            server = PostgresqlServer(settings={"fsync": "off"})
            with MonkeyPatch("tempfile.tempdir", _TEMPORARY):
                server.start()
            atexit.register(server.stop)
            _postgresql.append(server)
        return _postgresql[0]
