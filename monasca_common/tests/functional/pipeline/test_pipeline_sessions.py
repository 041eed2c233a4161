# SPDX-License-Identifier: Apache-2.0
"""A job's sessions on a real PostgreSQL: a frozen or slow driver does not block another driver indefinitely."""

import time
from dataclasses import replace

import sqlalchemy as sa
import testtools

from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.waiting import PATIENCE_SECONDS

SOURCE = Source("aggregate", "metrics", "an-id")
RANGES = [OffsetRange(0, 0, 5)]
PATIENT = Bounds(statement_seconds=PATIENCE_SECONDS, lock_seconds=PATIENCE_SECONDS, idle_seconds=PATIENCE_SECONDS)


class SessionsTest(PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.url = self.database.settings.connection
        OffsetStore(self.url).begin(SOURCE, {0: 0})

    # Rule 23
    def test_the_transaction_of_a_frozen_driver_ends_so_that_its_successor_continues(self):
        frozen, successor = OffsetStore(self.url, replace(PATIENT, idle_seconds=3.0)), OffsetStore(self.url, PATIENT)
        transaction = frozen.advance(SOURCE, RANGES)
        transaction.__enter__()  # the driver stays silent from now on, like a frozen process
        with successor.advance(SOURCE, RANGES):
            pass
        self.assertRaises(StorageUnavailable, transaction.__exit__, None, None, None)
        self.assertEqual({0: 5}, successor.next_offsets(SOURCE))

    def test_a_wait_for_a_lock_is_limited(self):
        impatient = OffsetStore(self.url, replace(PATIENT, lock_seconds=0.2))
        with OffsetStore(self.url).advance(SOURCE, RANGES):
            began = time.monotonic()
            with testtools.ExpectedException(StorageUnavailable, ".*lock timeout.*"), impatient.advance(SOURCE, RANGES):
                pass
            self.assertLess(time.monotonic() - began, PATIENCE_SECONDS / 2)

    def test_the_time_of_a_statement_is_limited(self):
        slow = OffsetStore(self.url, replace(PATIENT, statement_seconds=0.2))
        with (
            testtools.ExpectedException(StorageUnavailable, ".*statement timeout.*"),
            slow.writing() as connection,
        ):
            connection.execute(sa.text("SELECT pg_sleep(60)"))

    def test_a_job_has_all_limits_by_default(self):
        with OffsetStore(self.url).writing() as connection:
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
            found = {name: connection.scalar(sa.text(f"SHOW {name}")) for name in names}
        self.assertEqual(dict(zip(names, ("10min", "3min", "2min"), strict=True)), found)
