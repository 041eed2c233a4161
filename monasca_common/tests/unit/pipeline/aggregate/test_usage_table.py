# SPDX-License-Identifier: Apache-2.0
"""The database merges partials like `Partial.merge`."""

import itertools
from unittest import mock

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monasca_common.models.readings import Reading, exact_sum
from monasca_common.pipeline.aggregate import usage_table
from monasca_common.pipeline.aggregate.partials import Partial, PartialKey, group_text, merged
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage.sql.tables import aggregate_staging, aggregate_usage
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import golden, partials_of, pre_row, shipped_row, specifications

NOW_MS = 1_700_000_000_000
KEYS = [
    PartialKey(specification, window_ms, group)
    for specification in ("s@1", "t@1")
    for window_ms in (0, 600_000)
    for group in ((), ("a", "b"), ("ab", ""), ('quo"te', "é, ;"))
]

TIMES_MS = (0.0, 0.25, 599_999.75)
QUANTITIES = (0.0, 0.1, -0.1, 1e16, -1e16, 1e-300, 1e200, -1e200, 3.0, 1 / 3, 2.0**53 + 2)


def reading(partition, offset):
    """Generate a reading; each position has one record, and few different times cause ties."""
    return Reading(TIMES_MS[offset % 3], partition, offset, QUANTITIES[(7 * partition + offset) % len(QUANTITIES)])


readings = st.builds(reading, st.integers(0, 2), st.integers(0, 20))


@st.composite
def partials(draw):
    """Generate a partial of one to four records."""
    return _of(draw(st.lists(readings, min_size=1, max_size=4)))


def _of(some):
    whole = Partial.of(some[0])
    for reading in some[1:]:
        whole = whole.merge(Partial.of(reading))
    return whole


class Merging:
    def store(self, found, batch="b", attempts=(1,), job="j"):
        """Store the partials.

        ``found``: (key, partial), each key once.
        """
        rows = [usage_table.staged_row(key[0], key[1], group_text(key[2]), one) for key, one in found]
        with self.offset_store.writing() as connection:
            for attempt in attempts:
                staging.insert(connection, aggregate_staging, usage_table.STAGED, batch, attempt, rows, NOW_MS)
            usage_table.merge(connection, job, StagedAttempts(batch, attempts[:1], len(rows)))
            staging.clear(connection, aggregate_staging, batch, NOW_MS)

    def known(self, job="j"):
        with self.offset_store.reading() as connection:
            specifications = {key.specification_id for key in KEYS}
            return dict(
                itertools.chain.from_iterable(
                    usage_table.read(connection, job, specification, 0, 10**9) for specification in specifications
                )
            )


class MergeTest(Merging, DatabaseCase):
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.lists(st.dictionaries(st.sampled_from(KEYS), partials(), min_size=1), min_size=1, max_size=4))
    def test_the_order_of_batches_does_not_affect_the_result(self, batches):
        expected = merged(itertools.chain.from_iterable(batch.items() for batch in batches))
        for job, order in (("forth", batches), ("back", batches[::-1]), ("short", batches)):
            with self.offset_store.writing() as connection:
                connection.execute(aggregate_usage.delete().where(aggregate_usage.c.job == job))
            with mock.patch.object(usage_table, "MOST_FLOATS", 2 if job == "short" else 32):
                for batch in order:
                    self.store(batch.items(), job=job)
            self.assertEqual(expected, self.known(job))

    # Rule 28
    def test_only_committed_attempts_are_merged(self):
        one = {KEYS[0]: _of([Reading(1.0, 0, 0, 3.0)])}
        self.store(one.items(), attempts=(7, 8))
        self.assertEqual(one, self.known())
        self.assertEqual([], self.rows(aggregate_staging, "batch"))

    def test_staged_rows_are_counted_by_window(self):
        rows = [usage_table.staged_row(*key[:2], group_text(key[2]), _of([Reading(0, 0, 0, 1)])) for key in KEYS]
        with self.offset_store.writing() as connection:
            staging.insert(connection, aggregate_staging, usage_table.STAGED, "b", 1, rows, NOW_MS)
            staging.insert(connection, aggregate_staging, usage_table.STAGED, "b", 2, rows[:3], NOW_MS)
            staging.insert(connection, aggregate_staging, usage_table.STAGED, "other", 1, rows, NOW_MS)
            self.assertEqual(
                {(name, window): 4 for name in ("s@1", "t@1") for window in (0, 600_000)},
                usage_table.staged_windows(connection, StagedAttempts("b", (1,), 16)),
            )
            self.assertEqual({("s@1", 0): 3}, usage_table.staged_windows(connection, StagedAttempts("b", (2,), 3)))
            self.assertEqual({}, usage_table.staged_windows(connection, StagedAttempts("b", (), 0)))

    def test_staged_rows_older_than_a_day_are_removed_and_newer_ones_of_others_are_kept(self):
        row = usage_table.staged_row("s@1", 0, "[]", _of([Reading(0, 0, 0, 1)]))
        with self.offset_store.writing() as connection:
            for batch, staged_ms in (("mine", NOW_MS), ("another's", NOW_MS), ("old", NOW_MS - 86_400_001)):
                staging.insert(connection, aggregate_staging, usage_table.STAGED, batch, 1, [row], staged_ms)
            staging.clear(connection, aggregate_staging, "mine", NOW_MS)
        self.assertEqual([("another's",)], self.rows(aggregate_staging, "batch"))

    def test_only_windows_of_the_range_are_removed(self):
        self.store([(key, _of([Reading(0, 0, 0, 1)])) for key in KEYS])
        with self.offset_store.writing() as connection:
            usage_table.remove(connection, "j", ["s@1"], 0, 600_000)
            usage_table.remove(connection, "another", ["t@1"], 0, 10**9)
        self.assertEqual({key for key in KEYS if key[:2] != ("s@1", 0)}, set(self.known()))

    def test_a_long_sum_is_shortened_and_stays_exact(self):
        longest = 0
        for number in range(100):
            self.store([(KEYS[0], _of([Reading(0, 0, number, 0.1)]))])
            [(sums,)] = self.rows(aggregate_usage, "sums")
            longest = max(longest, len(sums.split()))
        self.assertEqual(usage_table.MOST_FLOATS, longest)
        self.assertEqual(exact_sum([0.1] * 100), self.known()[KEYS[0]].sums)

    def test_sums_of_zeros_do_not_grow(self):
        for number in range(100):
            self.store([(KEYS[0], _of([Reading(0, 0, number, 0.0)]))])
        [(sums,)] = self.rows(aggregate_usage, "sums")
        self.assertLess(len(sums), 2 * usage_table.MOST_FLOATS)
        self.assertEqual((), self.known()[KEYS[0]].sums)

    def test_sums_of_other_jobs_and_groups_are_unchanged(self):
        one = _of([Reading(0, 0, 0, 0.1)])
        for _ in range(20):
            self.store([(KEYS[0], one), (KEYS[1], one)])
            self.store([(KEYS[0], one)], job="other")
        with mock.patch.object(usage_table, "MOST_FLOATS", 2):
            self.store([(KEYS[0], one)])
        lengths = {
            (job, group): len(sums.split())
            for job, group, sums in self.rows(aggregate_usage, "job", "group_values", "sums")
        }
        self.assertEqual({("j", "[]"): 2, ("j", '["a","b"]'): 20, ("other", "[]"): 20}, lengths)


class GoldenMerge:
    """Metrics of real clouds, one batch for each. ``self.offset_store`` belongs to an empty database."""

    def test_golden_data_in_batches_is_exact_even_if_sums_are_shortened(self):
        self.patch(usage_table, "MOST_FLOATS", 2)
        for row, event_types, file in (
            (shipped_row("mem_total_all"), ["mem.total_mb"], "mem_and_pod_metrics.jsonl"),
            (shipped_row("cpu_util_all"), ["cpu.total_logical_cores", "cpu.idle_perc"], "cpu_metrics.jsonl"),
        ):
            pre_rows = [pre_row(event_type, row["metric_id"]) for event_type in event_types]
            specs = specifications(pre_rows, [row])
            messages = [(value, 0, offset) for offset, value in enumerate(golden(file))]
            expected = dict(partials_of(specs, messages))
            for message in messages:
                rows = [
                    usage_table.staged_row(key[0], key[1], group_text(key[2]), one)
                    for key, one in partials_of(specs, [message])
                ]
                if rows:
                    with self.offset_store.writing() as connection:
                        staging.insert(connection, aggregate_staging, usage_table.STAGED, "b", 1, rows, NOW_MS)
                        usage_table.merge(connection, "j", StagedAttempts("b", (1,), len(rows)))
                        staging.clear(connection, aggregate_staging, "b", NOW_MS)
            with self.offset_store.reading() as connection:
                [specification] = {key.specification_id for key in expected}
                found = dict(usage_table.read(connection, "j", specification, 0, NOW_MS))
                sums = connection.execute(sa.select(aggregate_usage.c.sums)).scalars().all()
            self.assertEqual(expected, found)
            self.assertLessEqual(max(len(text.split()) for text in sums), 3)


class SqliteGoldenMergeTest(GoldenMerge, DatabaseCase): ...
