# SPDX-License-Identifier: Apache-2.0
import pyarrow as pa
from oslotest import base

from monasca_common.alarms.expression import parse
from monasca_common.models.series import Series
from monasca_common.pipeline.evaluate import batch
from monasca_common.pipeline.evaluate.definitions import ActiveSubExpression
from monasca_common.pipeline.spark.counts import Greatest
from monasca_common.tests.unit.pipeline.pipeline_case import envelope

DAY_MS = 86_400_000


class ArrivalsOfFoldingTest(base.BaseTestCase):
    """A record is (partition, offset, Kafka's time in ms)."""

    def last(self, *batches):
        """What the tasks of one batch of Kafka's add up to."""
        greatest, whole = Greatest(), {}
        for records in batches:
            whole = greatest.addInPlace(whole, self.arrivals(records)[0])
        return whole

    def arrivals(self, records):
        found = []
        on_nothing = lambda *_: None  # noqa: E731
        definitions = batch.portable_definitions([])
        folding = batch.RecordFolding(definitions, 0, on_nothing, on_nothing, lambda *each: found.append(each))
        rows = [
            dict(zip(("partition", "offset", "kafka_ms"), each, strict=True)) | {"value": b"{}"} for each in records
        ]
        list(folding([pa.RecordBatch.from_pylist(rows)]))
        return found[0]

    def test_the_last_record_of_a_partition_counts_although_one_before_it_is_a_day_ahead(self):
        records = [(0, 5, 1_000), (1, 5, 7_000), (0, 6, 2_000 + DAY_MS), (0, 7, 3_000)]
        self.assertEqual({0: (7, 3_000), 1: (5, 7_000)}, self.last(records))

    def test_the_last_of_all_tasks_counts_whichever_is_done_first(self):
        tasks = [(0, 7, 3_000)], [(0, 6, 2_000 + DAY_MS)]
        self.assertEqual({0: (7, 3_000)}, self.last(*tasks))
        self.assertEqual({0: (7, 3_000)}, self.last(*reversed(tasks)))

    def test_arrivals_are_noted_by_their_buckets(self):
        self.assertEqual({0, 20_000}, self.arrivals([(0, 1, 1_000), (0, 2, 9_999), (1, 1, 20_000)])[1])


class FoldingTaskTest(base.BaseTestCase):
    def test_of_series_that_no_definition_has_nothing_is_kept(self):
        sub = parse("max(m) > 1").sub_expressions[0]
        task = batch._FoldingTask(batch._Matcher([ActiveSubExpression("s", 0, "t", (), 0, sub)]))
        one, other = (Series(name.encode(), "t", "r", name, {}) for name in ("m", "n"))
        self.assertEqual((1, 0), (len(task.folded(one)), len(task.folded(other))))
        self.assertEqual([b"m"], list(task.known))


class FoldedAgainTest(base.BaseTestCase):
    """Records that are folded once more, because definitions have changed: of no metric, of a time that is too new in
    the definitions of before, and of one in those of now."""

    def rejected(self, now, told):
        """(offsets of dead letters, how many records are rejected)."""
        letters, counts = [], []
        folding = batch.RecordFolding(
            batch.portable_definitions(list(map(self.active, now))),
            1_000,
            lambda _, found: letters.extend(sorted(found)),
            lambda _, rejected, __: counts.append(rejected),
            lambda *_: None,
            tuple(batch.portable_definitions([self.active(name)]) for name in told),
        )
        meta = {"tenantId": "t", "region": "r"}
        values = [b"{", *(envelope(name, DAY_MS, 1.0, meta=meta) for name in ("cpu", "mem", "disk"))]
        rows = [
            {"partition": 0, "offset": offset, "kafka_ms": 0, "value": value} for offset, value in enumerate(values)
        ]
        list(folding([pa.RecordBatch.from_pylist(rows)]))
        return letters, counts

    def active(self, name):
        return ActiveSubExpression(name, 0, "t", (), 0, parse(f"{name} > 1").root)

    def test_a_dead_letter_is_published_once_and_counted_by_who_commits(self):
        self.assertEqual(([0, 1], [2]), self.rejected(["cpu"], ()))
        self.assertEqual(([], [2]), self.rejected(["cpu"], ["cpu"]))
        self.assertEqual(([2], [3]), self.rejected(["cpu", "mem"], ["cpu"]))
        self.assertEqual(([3], [3]), self.rejected(["mem", "disk"], ["cpu", "mem"]))
