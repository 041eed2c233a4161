# SPDX-License-Identifier: Apache-2.0

import struct

import psycopg
from oslotest import base
from psycopg import errors

from monasca_common.storage.errors import SchemaMismatch, StorageUnavailable
from monasca_common.storage.postgresql import connection
from monasca_common.storage.postgresql.connection import is_of_a_row
from monasca_common.storage.sql.bounded import NoAnswer


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
