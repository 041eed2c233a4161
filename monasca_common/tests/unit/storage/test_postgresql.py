# SPDX-License-Identifier: Apache-2.0
"""The parts of the PostgreSQL driver that need no server."""

import errno
import socketserver
import struct
import threading
import time
from types import SimpleNamespace
from unittest import mock

import fixtures
import psycopg
from oslotest import base
from psycopg import errors

from monasca_common.devbroker import ports
from monasca_common.models.rows import LogEntry
from monasca_common.models.times import Window
from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.errors import SchemaMismatch, StorageUnavailable
from monasca_common.storage.postgresql import connection, encoding, partitions
from monasca_common.storage.postgresql.connection import is_of_a_row
from monasca_common.storage.postgresql.storage import PostgresqlStorage
from monasca_common.storage.retention import DAY_MS, window
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql.bounded import NoAnswer
from monasca_common.storage.sql.writer import keyed_rows
from monasca_common.storage.tables.rows import TableChanges, TableRows
from monasca_common.storage.tables.steps import misfit
from monasca_common.storage.tables.writer import TableStatements, _reduced, _store_postgresql
from monasca_common.tests.served import serve


class ErrorTranslationTest(base.BaseTestCase):
    def test_errors_of_data_encoding_and_size_are_errors_of_a_row(self):
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

    def test_errors_of_the_database_are_not_errors_of_a_row(self):
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

    def test_every_psycopg_error_becomes_a_storage_error(self):
        for raised, expected in (
            (errors.UndefinedTable("no table"), SchemaMismatch),
            (errors.UndefinedColumn("no column"), SchemaMismatch),
            (errors.DiskFull("full"), StorageUnavailable),
            (psycopg.InterfaceError("the connection is closed"), StorageUnavailable),
            (psycopg.ProgrammingError("bad"), StorageUnavailable),
            (OSError(errno.EMFILE, "Too many open files"), StorageUnavailable),  # while psycopg waits for a connection
        ):
            self.assertRaises(expected, self._translate, raised)

    def _translate(self, error):
        with connection.translated():
            raise error


class HangingServerTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        released = threading.Event()

        class Server(socketserver.BaseRequestHandler):
            def handle(self):
                self.request.recv(1000)
                self.request.sendall(struct.pack("!cIIcIc", b"R", 8, 0, b"Z", 5, b"I"))  # authenticated and ready
                released.wait(10.0)

        server = socketserver.ThreadingTCPServer((ports.HOST, 0), Server)
        self.addCleanup(serve(server))
        self.addCleanup(released.set)
        url = f"postgresql://u@{ports.HOST}:{server.server_address[1]}/name?sslmode=disable&gssencmode=disable"
        self.useFixture(fixtures.MonkeyPatch("monasca_common.storage.sql.bounded._GRACE_SECONDS", 0.1))
        self.settings = StorageSettings("postgresql", url, read_timeout_seconds=0.1)

    def fails_in_time(self, call, *arguments):
        began = time.monotonic()
        self.assertRaises(StorageUnavailable, call, *arguments)
        self.assertLess(time.monotonic() - began, 5.0)

    def test_a_server_that_accepts_connections_but_runs_no_statement_is_unavailable_in_time(self):
        self.fails_in_time(PostgresqlStorage(self.settings).status)

    def test_tables_are_compared_in_time_because_a_partition_of_the_sink_waits_for_the_result(self):
        self.fails_in_time(misfit, self.settings, ())


SERIES = bytes(range(16))


def fields_of(encoded):
    """Return the rows of a binary COPY as lists of the bytes of their fields."""
    assert encoded[:19] == b"PGCOPY\n\xff\r\n\0" + bytes(8)
    place, rows = 19, []
    while (count := struct.unpack_from("!h", encoded, place)[0]) != -1:
        place += 2
        row = []
        for _ in range(count):
            [length] = struct.unpack_from("!i", encoded, place)
            place += 4
            row.append(None if length == -1 else encoded[place : place + length])
            place += max(0, length)
        rows.append(row)
    assert place == len(encoded) - 2
    return rows


class EncodingTest(base.BaseTestCase):
    def test_a_measurement_has_five_fields_in_the_order_of_its_table(self):
        [row] = fields_of(encoding.measurements([(SERIES, 1_790_000_000_000, -1.5, None, 7)]))
        self.assertEqual(
            [SERIES, struct.pack("!q", 1_790_000_000_000), struct.pack("!d", -1.5), None, struct.pack("!q", 7)], row
        )

    def test_value_meta_is_encoded_as_the_version_of_jsonb_and_the_text(self):
        [row] = fields_of(encoding.measurements([(SERIES, 1, 1.0, '{"ü": "1"}', 7)]))
        self.assertEqual(b'\x01{"\xc3\xbc": "1"}', row[3])
        self.assertEqual(struct.pack("!q", 7), row[4])

    def test_rows_are_sorted_by_their_keys(self):
        other = bytes(16)
        keys = [(SERIES, 2), (SERIES, 1), (other, 300), (other, 4)]
        rows = [(*key, 1.0, meta, 1) for key, meta in zip(keys, ("{}", None, None, "{}"), strict=True)]
        encoded = fields_of(encoding.measurements(rows))
        self.assertEqual(sorted(keys), [(row[0], struct.unpack("!q", row[1])[0]) for row in encoded])

    def test_rows_of_users_tables_are_sorted_by_their_keys_which_come_first(self):
        columns = [SimpleNamespace(name=name) for name in ("a", "k", "b")]
        table = SimpleNamespace(name="t", columns=columns, key=("k",), keeps_first=True)
        statements = TableStatements(table, "postgresql", 0)
        rows = TableRows([[None, "x\ty", None], ["b", "a", "c"], [1.5, None, -2.0]], [0, 1, 2])
        values, keys = _reduced(statements, TableChanges(table, rows, TableRows((), ())))
        connection = mock.MagicMock()
        self.assertEqual((3, 0), _store_postgresql(connection, statements, values, keys, merge=False))
        copy = connection.cursor.return_value.__enter__.return_value.copy
        copy.assert_called_once_with('COPY "t" ("k", "a", "b") FROM STDIN')
        copy.return_value.__enter__.return_value.write.assert_called_once_with(
            "a\tx\\ty\t\\N\nb\t\\N\t1.5\nc\t\\N\t-2.0\n"
        )

    def test_rows_are_not_copied_into_a_table_without_the_unique_index_of_its_key(self):
        table = SimpleNamespace(name="t", columns=[SimpleNamespace(name="k")], key=("k",), keeps_first=False)
        connection = mock.MagicMock()
        connection.execute.side_effect = errors.InvalidColumnReference
        statements = TableStatements(table, "postgresql", 0)
        self.assertRaises(StorageUnavailable, _store_postgresql, connection, statements, [["a"]], (), merge=False)
        connection.execute.assert_called_once_with(
            'EXPLAIN INSERT INTO "t" ("k") SELECT "k" FROM "t" ON CONFLICT ("k") DO NOTHING'
        )
        connection.cursor.assert_not_called()

    def test_zero_rows_are_encoded_as_a_header_and_a_trailer(self):
        self.assertEqual([], fields_of(encoding.measurements([])))

    def test_numbers_beyond_their_columns_cannot_be_encoded(self):
        for row in ((SERIES, 2**63, 1.0, None, 1), (SERIES, 1, 1.0, None, -(2**63) - 1)):
            self.assertRaises(struct.error, encoding.measurements, [row])

    def test_other_kinds_have_text_json_and_null_after_their_key(self):
        table = encoding.KEYED_TABLES[Kind.LOGS]
        entry = LogEntry(5, "tenant", "region", "größe", "{}", '{"a": 1}')
        rows = [(entry[0], b"id", *entry[1:])]
        [row] = fields_of(encoding.keyed(table, rows))
        self.assertEqual(
            [struct.pack("!q", 5), b"id", b"tenant", b"region", "größe".encode(), b"\x01{}", b'\x01{"a": 1}'], row
        )
        self.assertEqual(("time", "message_id", "tenant", "region", "message", "dimensions", "fields"), table.columns)
        without = [(entry[0], b"id", *entry._replace(message=None)[1:])]
        self.assertIsNone(fields_of(encoding.keyed(table, without))[0][4])

    def test_the_first_of_several_rows_with_one_key_is_kept(self):
        entries = [
            LogEntry(time, "t", "r", text, "{}", "{}") for time, text in ((1, "a"), (1, "b"), (2, "c"), (1, "d"))
        ]
        rows = Rows(Kind.LOGS, entries, range(4), [b"x", b"x", b"x", b"y"])
        kept = encoding.first_of_each_key(keyed_rows(rows))
        self.assertEqual(["a", "c", "d"], sorted(row[4] for row in kept))

    def test_equal_objects_have_the_same_jsonb_text(self):
        texts = ('{"bb":"1","a":"2"}', '{ "a" : "2", "bb" : "1" }', '{"a":"x","\\u0061":"2","bb":"1"}')
        self.assertEqual({'{"a": "2", "bb": "1"}'}, set(map(encoding.jsonb_text, texts)))


NOON_MS = 1_790_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2
TODAY = NOON_MS // DAY_MS


class PartitionsTest(base.BaseTestCase):
    def test_the_name_of_a_partition_contains_its_day(self):
        self.assertEqual("logs_20260921", partitions.partition_name("logs", TODAY))
        for day in (0, TODAY, TODAY + 30_000, -1):
            name = partitions.partition_name("alarm_history", day)
            self.assertEqual(day, partitions._day_of_name("alarm_history", name))

    def test_other_names_are_not_partitions(self):
        for name in ("logs_backup", "logs_2026", "logs", "logs_20261399", "events_20260921"):
            self.assertIsNone(partitions._day_of_name("logs", name))

    def test_days_start_at_midnight_utc_also_before_1970(self):
        self.assertEqual([0, 0, 1, -1], [partitions.day_of(time) for time in (0, DAY_MS - 1, DAY_MS, -1)])

    def test_partitions_of_two_days_before_and_after_are_created(self):
        allowed = window(StorageSettings("postgresql", ""), Kind.METRICS, NOON_MS)
        self.assertEqual(set(range(TODAY - 2, TODAY + 3)), partitions.around(NOON_MS, allowed))

    def test_no_partition_is_created_for_a_refused_day(self):
        allowed = Window(NOON_MS - DAY_MS, NOON_MS)
        self.assertEqual({TODAY - 1, TODAY, TODAY + 1}, partitions.around(NOON_MS, allowed))
