# SPDX-License-Identifier: Apache-2.0

import struct
from types import SimpleNamespace

import psycopg
from fixtures import MonkeyPatch
from oslotest import base
from psycopg import errors
from psycopg.pq import ConnStatus

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.errors import SchemaMismatch, StorageUnavailable
from monasca_common.storage.postgresql import connection
from monasca_common.storage.postgresql.connection import BoundedConnection, NoAnswer, is_of_a_row


class ConnectArgumentsTest(base.BaseTestCase):
    def test_a_url_with_or_without_the_driver_is_taken_apart(self):
        for scheme in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"):
            found = connection.connect_arguments(f"{scheme}://user:p%40ss@host:5433/name?sslmode=require")
            expected = {"user": "user", "password": "p@ss", "host": "host", "port": 5433, "dbname": "name"}
            self.assertEqual({**expected, "sslmode": "require"}, found)

    def test_a_socket_and_several_hosts_can_be_named(self):
        self.assertEqual("/run/pg", connection.connect_arguments("postgresql://u@/name?host=/run/pg")["host"])
        found = connection.connect_arguments("postgresql://u@/name?host=a:1&host=b:2")
        self.assertEqual(("a,b", "1,2"), (found["host"], found["port"]))

    def test_what_is_no_url_is_refused_without_quoting_it(self):
        for url in ("sesame", "postgresql://user:sesame@host:port/name"):
            error = self.assertRaises(ConfigurationError, connection.connect_arguments, url)
            self.assertNotIn("sesame", str(error))


class MeaningTest(base.BaseTestCase):
    def test_rows_are_to_blame_for_their_data_their_encoding_and_their_size(self):
        for error in (
            errors.NumericValueOutOfRange(),
            errors.UntranslatableCharacter(),
            errors.NotNullViolation(),
            errors.ProgramLimitExceeded(),
            psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"),
            UnicodeEncodeError("utf-8", "\udc00", 0, 1, "surrogates not allowed"),
            struct.error(),
        ):
            self.assertTrue(is_of_a_row(error), repr(error))

    def test_rows_are_not_to_blame_for_the_state_of_the_database(self):
        for error in (
            errors.DiskFull(),
            errors.LockNotAvailable(),
            errors.QueryCanceled(),
            errors.DeadlockDetected(),
            errors.SerializationFailure(),
            errors.AdminShutdown(),
            errors.ReadOnlySqlTransaction(),
            errors.TooManyConnections(),
            errors.OutOfMemory(),
            errors.InsufficientPrivilege(),
            psycopg.OperationalError("server closed the connection unexpectedly"),
            NoAnswer(),
        ):
            self.assertFalse(is_of_a_row(error), repr(error))

    def test_every_error_of_psycopg_becomes_one_of_storage(self):
        for raised, expected in (
            (errors.UndefinedTable("no table"), SchemaMismatch),
            (errors.UndefinedColumn("no column"), SchemaMismatch),
            (errors.DiskFull("full"), StorageUnavailable),
            (psycopg.InterfaceError("the connection is closed"), StorageUnavailable),
            (psycopg.ProgrammingError("bad"), StorageUnavailable),
        ):
            self.assertRaises(expected, self._translate, raised)

    def _translate(self, error):
        with connection.translated():
            raise error


class DeadlineTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.finished = False

    def bounded(self, waits):
        """The generator that the connection hands on to psycopg's own waiting."""
        made = BoundedConnection.__new__(BoundedConnection)
        made.pgconn = SimpleNamespace(finish=self.finish, status=ConnStatus.BAD)
        made.deadline = 110.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        self.useFixture(MonkeyPatch("monasca_common.storage.postgresql.connection.time", clock))

        def answering():
            readiness = []
            for _ in range(waits):
                readiness.append((yield "wait"))  # noqa: PERF401
            return readiness

        return made._until_deadline(answering())

    def finish(self):
        self.finished = True

    def test_within_the_deadline_readiness_and_the_result_pass_through(self):
        steps = self.bounded(3)
        next(steps)
        for ready in (0, 2):
            self.assertEqual("wait", steps.send(ready))
        done = self.assertRaises(StopIteration, steps.send, 1)
        self.assertEqual([0, 2, 1], done.value)

    def test_past_the_deadline_the_connection_is_given_up_unless_an_answer_is_there(self):
        steps = self.bounded(3)
        next(steps)
        self.now = 111.0
        steps.send(1)
        self.assertFalse(self.finished)
        self.assertRaises(NoAnswer, steps.send, 0)
        self.assertTrue(self.finished)
