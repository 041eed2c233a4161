# SPDX-License-Identifier: Apache-2.0
import psycopg
from oslotest import base
from psycopg import errors
from sqlalchemy import exc

from monasca_common.storage.errors import QueryTimeout, SchemaMismatch, StorageError, StorageUnavailable
from monasca_common.storage.sql.connections import Deadline, translated


class TestTranslated(base.BaseTestCase):
    def test_what_may_pass_is_told_from_what_does_not(self):
        for raised, expected in (
            (errors.DeadlockDetected("deadlock"), StorageUnavailable),
            (errors.SerializationFailure("conflict with recovery"), StorageUnavailable),
            (errors.ReadOnlySqlTransaction("a standby now"), StorageUnavailable),
            (errors.LockNotAvailable("locked"), StorageUnavailable),
            (errors.AdminShutdown("stopped"), StorageUnavailable),
            (errors.QueryCanceled("too slow"), QueryTimeout),
            (errors.UndefinedTable("no table"), SchemaMismatch),
            (errors.InsufficientPrivilege("no right"), StorageError),
        ):
            made = exc.DBAPIError.instance("SELECT 1", None, raised, psycopg.Error)
            self.assertIs(expected, type(translated(made, Deadline(1.0))), repr(raised))
