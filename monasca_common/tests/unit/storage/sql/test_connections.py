# SPDX-License-Identifier: Apache-2.0
"""Connections to SQL databases."""

import contextlib
import gc
import weakref
from types import SimpleNamespace

import psycopg
from fixtures import MonkeyPatch
from oslotest import base
from psycopg import errors
from psycopg.pq import ConnStatus
from sqlalchemy import exc

from monasca_common.devbroker import ports
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.errors import (
    LockTimeout,
    QueryTimeout,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)
from monasca_common.storage.sql.bounded import BoundedConnection, NoAnswer, connect_arguments, open_connection
from monasca_common.storage.sql.connections import Deadline, translated


class TestTranslated(base.BaseTestCase):
    def test_temporary_and_permanent_errors_are_distinguished(self):
        for raised, expected in (
            (errors.DeadlockDetected("deadlock"), StorageUnavailable),
            (errors.SerializationFailure("conflict with recovery"), StorageUnavailable),
            (errors.ReadOnlySqlTransaction("a standby now"), StorageUnavailable),
            (errors.LockNotAvailable("locked"), LockTimeout),
            (errors.AdminShutdown("stopped"), StorageUnavailable),
            (errors.QueryCanceled("too slow"), QueryTimeout),
            (errors.UndefinedTable("no table"), SchemaMismatch),
            (errors.InsufficientPrivilege("no right"), StorageError),
        ):
            made = exc.DBAPIError.instance("SELECT 1", None, raised, psycopg.Error)
            self.assertIs(expected, type(translated(made, Deadline(1.0))), repr(raised))


class ConnectArgumentsTest(base.BaseTestCase):
    def test_a_url_with_or_without_the_driver_is_parsed(self):
        for scheme in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"):
            found = connect_arguments(f"{scheme}://user:p%40ss@host:5433/name?sslmode=require")
            expected = {"user": "user", "password": "p@ss", "host": "host", "port": 5433, "dbname": "name"}
            self.assertEqual({**expected, "sslmode": "require"}, found)

    def test_a_socket_and_several_hosts_can_be_named(self):
        self.assertEqual("/run/pg", connect_arguments("postgresql://u@/name?host=/run/pg")["host"])
        found = connect_arguments("postgresql://u@/name?host=a:1&host=b:2")
        self.assertEqual(("a,b", "1,2"), (found["host"], found["port"]))

    def test_an_invalid_url_is_refused_and_not_shown(self):
        for rest in ("host:port/name", "a..b/name", f"{'x' * 64}/name", "sesame@host/name"):
            url = f"postgresql://user:sesame@{rest}"
            error = self.assertRaises(ConfigurationError, connect_arguments, url)
            self.assertNotIn("sesame", str(error))
        self.assertRaises(ConfigurationError, connect_arguments, "sesame")
        self.assertEqual("a.,b", connect_arguments("postgresql://u@a.,b/name")["host"])


class RefusedConnectionTest(base.BaseTestCase):
    def test_data_of_its_caller_is_released_without_a_collection(self):
        self.addCleanup(gc.enable)
        gc.disable()
        found = []

        def connect(hosts):
            rows = set()
            found.append(weakref.ref(rows))
            port = str(ports.free_ports(1)[0])
            open_connection({"host": ",".join(hosts), "port": ",".join([port] * len(hosts))}, None, application="test")

        for hosts in ([ports.HOST], [ports.HOST, ports.HOST]):
            with contextlib.suppress(psycopg.OperationalError):
                connect(hosts)
        self.assertEqual([None, None], [each() for each in found])

    def test_texts_are_sent_in_utf8_whatever_the_encoding_of_the_database(self):
        given = {}
        self.useFixture(MonkeyPatch(f"{BoundedConnection.__module__}.BoundedConnection.connect", given.update))
        open_connection({"host": ports.HOST}, None, application="test")
        self.assertEqual("UTF8", given["client_encoding"])


class DeadlineTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.finished = False

    def bounded(self, waits, each_seconds=float("inf")):
        """Return the generator that the connection passes to psycopg's wait function."""
        made = BoundedConnection.__new__(BoundedConnection)
        made.pgconn = SimpleNamespace(finish=self.finish, status=ConnStatus.BAD)
        made.deadline = 110.0
        made.each_seconds = each_seconds
        clock = SimpleNamespace(monotonic=lambda: self.now)
        self.useFixture(MonkeyPatch("monasca_common.storage.sql.bounded.time", clock))

        def answering():
            readiness = []
            for _ in range(waits):
                readiness.append((yield "wait"))  # noqa: PERF401
            return readiness

        return made._until_deadline(answering())

    def finish(self):
        self.finished = True

    def test_within_the_deadline_readiness_and_the_result_are_passed_on(self):
        steps = self.bounded(3)
        next(steps)
        for ready in (0, 2):
            self.assertEqual("wait", steps.send(ready))
        done = self.assertRaises(StopIteration, steps.send, 1)
        self.assertEqual([0, 2, 1], done.value)

    def test_after_the_deadline_the_connection_is_closed_unless_a_response_has_arrived(self):
        steps = self.bounded(3)
        next(steps)
        self.now = 111.0
        steps.send(1)
        self.assertFalse(self.finished)
        self.assertRaises(NoAnswer, steps.send, 0)
        self.assertTrue(self.finished)

    def test_each_response_has_its_own_time_limit(self):
        steps = self.bounded(3, each_seconds=5.0)
        next(steps)
        steps.send(0)
        self.now = 106.0
        self.assertRaises(NoAnswer, steps.send, 0)
