# SPDX-License-Identifier: Apache-2.0
"""Batches that are too much for one transaction are stored all the same."""

from monasca_common.storage import parts
from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.errors import TooMuchAtOnce
from monasca_common.storage.postgresql import partitions
from monasca_common.storage.testing.database import NOW_MS
from monasca_common.storage.testing.scenario import claim, measurement
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic

_DAY_MS = 86_400_000
_SLOW = """
    CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.08); RETURN new; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON measurements FOR EACH ROW EXECUTE FUNCTION dawdle()
"""
_NOTED = """
    CREATE TABLE noted (transaction xid8 DEFAULT pg_current_xact_id());
    CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO noted DEFAULT VALUES; END $$;
    CREATE EVENT TRIGGER noted ON ddl_command_end WHEN tag IN ('CREATE TABLE') EXECUTE FUNCTION note()
"""


class PartsTest(PostgresqlTestCase):
    def prepared(self, **changes):
        self.database = self.empty_database(**changes)
        self.database.prepare()
        return self.database.writer()

    def write_until_stored(self, writer, values):
        """How often it was too much, and the parts."""
        size = parts.PartSize()
        for failures in range(20):
            try:
                rows = Rows(Kind.METRICS, values, range(len(values)))
                return failures, list(parts.write(writer, claim(0, len(values)), rows, size))
            except TooMuchAtOnce:
                continue
        return self.fail("never stored")

    # Rule 25
    def test_a_batch_too_slow_for_its_time_out_is_stored_in_parts_each_row_once(self):
        writer = self.prepared(write_timeout_seconds=2.0)
        self.session().execute(_SLOW)
        values = [measurement(number) for number in range(60)]
        failures, stored = self.write_until_stored(writer, values)
        self.assertGreater(failures, 0)
        self.assertEqual(60, stored[-1].claim.end)
        with each_once():
            self.assertEqual(
                [float(n) for n in range(60)], sorted(row.value for row in self.database.rows(Kind.METRICS))
            )

    @periodic("the cost of very large batches")
    def test_a_batch_of_very_many_new_days_is_stored_and_few_are_made_in_one_transaction(self):
        writer = self.prepared(default_retention_days=1000)
        self.session().execute(_NOTED)
        days = 300
        values = [measurement(day, time_ms=NOW_MS - day * _DAY_MS) for day in range(days)]
        self.write_until_stored(writer, values)
        self.assertEqual(days, len(self.database.rows(Kind.METRICS)))
        counts = self.session().execute("SELECT count(*) FROM noted GROUP BY transaction").fetchall()
        self.assertLessEqual(max(count for (count,) in counts), 20)
        self.assertLessEqual(days, len(partitions.made(writer._connection, "measurements")))
