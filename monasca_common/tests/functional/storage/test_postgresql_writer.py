# SPDX-License-Identifier: Apache-2.0
"""Behaviour that only PostgreSQL's writer has: two ways to insert rows, concurrent writers, and its own refusals."""

import dataclasses
import random
import threading
from unittest import mock

from fixtures import MonkeyPatch

from monasca_common.storage import parts, positions
from monasca_common.storage.base import Kind, Rows, Written
from monasca_common.storage.errors import RowsRefused, TooMuchAtOnce
from monasca_common.storage.postgresql import encoding, partitions, staging
from monasca_common.storage.postgresql.writer import PostgresqlWriter
from monasca_common.tests.checker import each_once
from monasca_common.tests.contracts.storage.database import NOW_MS
from monasca_common.tests.contracts.storage.fencing import LOG_LENGTH, numbers_of_the_log, write_the_log
from monasca_common.tests.contracts.storage.scenario import claim, make_series, measurement, message_id, row
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase, batch
from monasca_common.tests.periodic import periodic
from monasca_common.tests.threads import run_together
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

SIZE = 50
WRITERS = 3


class CopyAndStagingTest(PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.writer = self.database.writer()
        self.copied = []
        real = staging.copy

        def copy(connection, table, *arguments, **keywords):
            self.copied.append(table)
            return real(connection, table, *arguments, **keywords)

        self.useFixture(MonkeyPatch("monasca_common.storage.postgresql.staging.copy", copy))

    def write(self, values, partition, kind=Kind.METRICS):
        """Write rows. Each partition starts at 0, so that only keys identify stored rows."""
        ids = tuple(map(message_id, range(len(values))))
        rows = Rows(kind, values, range(len(values)), ids)
        return self.writer.write(claim(0, len(values), partition=partition, topic=str(kind)), rows)

    def test_new_rows_are_copied_directly_into_their_table(self):
        for kind, table in ((Kind.METRICS, "measurements"), (Kind.LOGS, "logs")):
            self.copied.clear()
            self.write([row(kind, n) for n in range(3)], 0, kind)
            self.assertEqual([table], self.copied)

    def test_repeated_batches_use_the_temporary_table_until_a_batch_is_new(self):
        old, new = ([measurement(n, time_ms=NOW_MS + t) for n in range(3)] for t in (0, 1))
        self.write(old, 0)
        self.copied.clear()
        self.assertEqual(Written(repeated=3), self.write(old, 1))
        self.assertEqual(["measurements", "pg_temp.staged"], self.copied)
        self.copied.clear()
        self.assertEqual(Written(repeated=3), self.write(old, 2))
        self.assertEqual(Written(stored=3), self.write(new, 3))
        self.assertEqual(["pg_temp.staged", "pg_temp.staged"], self.copied)
        self.copied.clear()
        self.write([measurement(n, time_ms=NOW_MS + 2) for n in range(3)], 4)
        self.assertEqual(["measurements"], self.copied)

    def test_after_repeated_batches_a_partly_new_batch_is_counted_and_stored(self):
        old = [measurement(n) for n in range(3)]
        self.write(old, 0)
        for partition in (1, 2):
            self.assertEqual(Written(repeated=3), self.write(old, partition))
        greater = old[1]._replace(version=NOW_MS + 1, value=7.5)
        mixed = [old[0], greater, measurement(8), old[2]._replace(version=NOW_MS - 1, value=9.5)]
        self.assertEqual(Written(stored=1, repeated=1, conflicting=2), self.write(mixed, 3))
        self.assertEqual([0.0, 2.0, 7.5, 8.0], sorted(each.value for each in self.database.rows(Kind.METRICS)))
        self.assertEqual(Written(repeated=1, conflicting=1), self.write([old[1], old[2]], 4))

    def test_value_meta_decides_within_a_call_as_between_calls(self):
        # The first is smaller as text and greater as jsonb (shorter keys first); the result must not depend on the way
        # of insertion.
        metas = ['{"aa": "1", "b": "2"}', '{"b": "2", "aa": "0"}', '{"b":"2","aa":"1"}', None, '{"ü": "\\u00e4"}']
        outcomes = set()
        for partition in range(40):
            shuffled = random.Random(partition).sample(metas, len(metas))
            series = make_series(host=f"host-{partition}")
            values = [measurement(1, series=series, value_meta=meta) for meta in shuffled]
            cut = partition % len(values)
            with mock.patch.dict(self.writer.__dict__, _merging={Kind.METRICS}):
                self.write(values[:cut], 2 * partition)
            self.write(values[cut:], 2 * partition + 1)
            [stored] = [each for each in self.database.rows(Kind.METRICS) if each.series.id == series.id]
            outcomes.add(stored.value_meta)
        self.assertEqual(1, len(outcomes), outcomes)

    def test_the_text_of_a_jsonb_equals_that_of_the_server(self):
        session = self.session()
        for text in (
            '{"b":"1","aa":"2","a":"3"}',
            '{"\\u00fc": "\\u2028\\u0001\\b\\f\\n\\r\\t\\"\\\\/", "": "\\ud83c\\udf21"}',
            '{"a": {"z": [1, true, null, "x"], "y": {}}, "a": {"y": []}}',
            "{}",
        ):
            [theirs] = session.execute("SELECT %s::jsonb::text", [text]).fetchone()
            self.assertEqual(theirs, encoding.jsonb_text(text))


class RaceTest(Waiting, PostgresqlTestCase):
    def race(self):
        run_together(write_the_log, self.writers(), range(WRITERS))
        return numbers_of_the_log(self.database)

    def writers(self):
        return [self.database.writer() for _ in range(WRITERS)]

    def no_lock(self):
        unlocked = dataclasses.replace(positions.POSTGRESQL, lock="")
        return mock.patch.object(PostgresqlWriter, "dialect", unlocked)

    def all_read_the_position_before_one_moves_it(self):
        """Wait until each writer has finished its first transaction, regardless of the load of the machine."""
        first = claim(0, 1)
        with self.database.storage().open_writer() as writer:
            writer.begin(first.group, {first.topic_partition: 0}, {first.topic_partition: first.topic_id})
        hold, together, waited = positions.StoredPositions.hold, threading.Barrier(WRITERS), set()

        def hold_together(stored_positions, its_claim):
            stored = hold(stored_positions, its_claim)
            if threading.get_ident() not in waited:
                waited.add(threading.get_ident())
                together.wait(PATIENCE_SECONDS)
            return stored

        return mock.patch.object(positions.StoredPositions, "hold", hold_together)

    # Rule 23
    def test_mutant_without_lock_and_comparison_stores_rows_twice(self):
        together = self.all_read_the_position_before_one_moves_it()
        with self.no_lock(), mock.patch.object(positions, "COMPARE", ""), together:
            self.assertGreater(len(self.race()), LOG_LENGTH)

    def test_without_the_lock_the_comparison_prevents_duplicate_rows(self):
        with self.no_lock(), each_once():
            self.assertEqual(list(range(LOG_LENGTH)), self.race())

    # Rule 25
    def test_a_row_by_id_waits_for_a_writer_of_the_same_id_and_is_stored_if_that_writer_rolls_back(self):
        for ending, expected in (("COMMIT", Written(repeated=1)), ("ROLLBACK", Written(stored=1))):
            other, watching, own_id = self.session(), self.session(), ending.encode()
            other.execute("BEGIN")
            other.execute("INSERT INTO logs_by_id (message_id, time) VALUES (%s, 5)", [own_id])
            written = []
            rows = Rows(Kind.LOGS, [row(Kind.LOGS)], [0], [own_id], [True])
            writer = self.database.writer()
            its_claim = claim(0, 1, topic=ending)
            thread = threading.Thread(target=lambda: written.append(writer.write(its_claim, rows)))  # noqa: B023
            thread.start()
            self.wait_until(lambda: self.waits_for_another(watching))  # noqa: B023
            self.assertEqual([], written)
            other.execute(ending)
            thread.join()
            self.assertEqual([expected], written)

    def waits_for_another(self, session):
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        return session.execute(waiting).fetchone()[0] > 0

    def test_writers_of_the_same_ids_in_any_order_do_not_deadlock(self):
        def run(writer, number):
            stored = 0
            for turn in range(20):
                order = random.Random(number + WRITERS * turn).sample(range(SIZE), SIZE)
                rows = [row(Kind.LOGS, n, time_ms=NOW_MS + number) for n in order]
                ids = [message_id(turn * SIZE + n) for n in order]
                its_claim = claim(turn * SIZE, (turn + 1) * SIZE, partition=number)
                offsets = range(its_claim.start, its_claim.end)
                stored += writer.write(its_claim, Rows(Kind.LOGS, rows, offsets, ids, [True] * SIZE)).stored
            return stored

        self.assertEqual(20 * SIZE, sum(run_together(run, self.writers(), range(WRITERS))))
        self.assertEqual(20 * SIZE, len(self.database.rows(Kind.LOGS)))

    def test_writers_of_the_same_series_and_keys_in_any_order_do_not_deadlock(self):
        writers = self.writers()
        orders = [random.Random(number).sample for number in range(WRITERS)]

        def write(writer, shuffle, partition, its_batch):
            its_claim, rows = its_batch
            own_claim = claim(its_claim.start, its_claim.end, partition=partition)
            writer.write(own_claim, Rows(Kind.METRICS, shuffle(rows.values, SIZE), rows.offsets))

        for number in range(10):
            run_together(write, writers, orders, range(WRITERS), [batch(number, SIZE)] * WRITERS)
        self.assertEqual(10 * SIZE, len(self.database.rows(Kind.METRICS)))


class RefusalTest(PostgresqlTestCase):
    def test_only_the_row_that_an_index_cannot_hold_is_refused(self):
        noise = random.Random(0)
        endless = "".join(chr(noise.randrange(0x4E00, 0x9FFF)) for _ in range(4000))
        bad = measurement(series=make_series(endless))
        rows = [measurement(n) for n in range(20)]
        rows.insert(7, bad)
        refused = self.assertRaises(
            RowsRefused, self.database.writer().write, claim(0, 21), Rows(Kind.METRICS, rows, range(21))
        )
        self.assertEqual({7}, set(refused.reasons))
        self.assertIn("index row", refused.reasons[7])

    def test_only_the_row_with_a_nul_in_a_text_is_refused(self):
        rows = [row(Kind.LOGS, n) for n in range(20)]
        rows[3] = rows[3]._replace(message="a\0b")
        rows[4] = rows[4]._replace(fields='{"a": "\\u0000"}')
        refused = self.assertRaises(
            RowsRefused,
            self.database.writer().write,
            claim(0, 20),
            Rows(Kind.LOGS, rows, range(20), tuple(map(message_id, range(20)))),
        )
        self.assertEqual({3, 4}, set(refused.reasons))


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
        """Write until everything is stored, and return the number of failures and the parts."""
        size = parts.PartSize()
        for failures in range(20):
            try:
                rows = Rows(Kind.METRICS, values, range(len(values)))
                return failures, list(parts.write(writer.write, claim(0, len(values)), rows, size))
            except TooMuchAtOnce:
                continue
        return self.fail("never stored")

    # Rule 25
    def test_a_batch_too_slow_for_its_time_out_is_stored_in_parts_with_each_row_once(self):
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
    def test_a_batch_of_many_new_days_is_stored_with_few_new_partitions_per_transaction(self):
        writer = self.prepared(default_retention_days=1000)
        self.session().execute(_NOTED)
        days = 300
        values = [measurement(day, time_ms=NOW_MS - day * _DAY_MS) for day in range(days)]
        self.write_until_stored(writer, values)
        self.assertEqual(days, len(self.database.rows(Kind.METRICS)))
        counts = self.session().execute("SELECT count(*) FROM noted GROUP BY transaction").fetchall()
        self.assertLessEqual(max(count for (count,) in counts), 20)
        self.assertLessEqual(days, len(partitions._attached(writer._connection, "measurements")))
