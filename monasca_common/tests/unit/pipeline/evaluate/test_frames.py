# SPDX-License-Identifier: Apache-2.0
import pyarrow as pa
from oslotest import base

from monasca_common.pipeline.evaluate import frames
from monasca_common.pipeline.spark.counts import Greatest

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
        definitions = frames.portable_definitions([])
        folding = frames.RecordFolding(definitions, 0, on_nothing, on_nothing, lambda *each: found.append(each))
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
