# SPDX-License-Identifier: Apache-2.0
"""Messages that are in the topic twice with the same id, and count once if the option is set."""

from random import Random
from unittest import mock

import confluent_kafka
from confluent_kafka.admin import NewPartitions
from oslotest import base

from monasca_common.kafka import failpoints
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Record, TopicPartition
from monasca_common.pipeline.backfill.batch import Backfill
from monasca_common.pipeline.errors import Fenced
from monasca_common.pipeline.source.topic import Extent
from monasca_common.pipeline.spark.source_records import repeated
from monasca_common.tests.functional.pipeline.pipeline_case import MINUTE_MS, NOON_MS, CpuCase, SharedSpark, cpu
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS

HOUR_MS = 60 * MINUTE_MS
LOOKBACK = 100


class DuplicatesCase(CpuCase):
    def job(self, specs=None, **changes):
        return super().job(specs, **{"duplicates_lookback": LOOKBACK, **changes})

    def first(self, message_id, partition, minute=1, value=1):
        """Publish a message that counts."""
        self.sent += self.publish([self.record(message_id, partition, minute, value)])

    def again(self, message_id, partition, minute=1, value=1):
        """Publish a copy, which does not count."""
        self.publish([self.record(message_id, partition, minute, value)])

    def record(self, message_id, partition, minute, value):
        return Record(cpu(minute, value), partition=partition, message_id=message_id)

    def fill(self, partition, count):
        """Fill offsets with messages of another metric, which is not aggregated."""
        self.publish([b'{"metric":{"name":"other","timestamp":1,"value":1}}'] * count, partition=partition)


class BatchTest(DuplicatesCase):
    def test_copies_within_a_batch_count_once_in_any_partition(self):
        self.first(b"a", 0, value=1)
        self.again(b"a", 0, value=1)
        self.again(b"a", 1, value=1)
        self.first(b"b", 1, value=4)
        self.again(b"b", 1, value=4)
        report = self.job().step()
        self.assertEqual((3, 5), (report.results["duplicates"], report.done))
        self.assert_exact()

    def test_messages_without_an_id_or_with_an_empty_id_are_not_copies(self):
        producer = confluent_kafka.Producer({**self.cluster.direct_options(), "linger.ms": 0})
        nameless = [None, [], [(MESSAGE_ID_HEADER, b"")], [(MESSAGE_ID_HEADER, None)], [("other", b"a")]]
        for offset, headers in enumerate(nameless * 2):
            producer.produce(self.topic, cpu(1, 2), partition=0, headers=headers)
            self.sent.append((cpu(1, 2), 0, offset))
        # Of two ids in one message the first valid id counts, as for every reader.
        for headers in ([(MESSAGE_ID_HEADER, b""), (MESSAGE_ID_HEADER, b"a")], [(MESSAGE_ID_HEADER, b"a")]):
            producer.produce(self.topic, cpu(1, 2), partition=0, headers=headers)
        self.sent.append((cpu(1, 2), 0, 10))
        self.assertEqual(0, producer.flush(PATIENCE_SECONDS))
        self.assertEqual(1, self.job().step().results["duplicates"])
        self.assert_exact()

    def test_aborted_messages_are_not_counted_as_the_first_copy(self):
        options = {**self.cluster.direct_options(), "transactional.id": self.topic, "linger.ms": 0}
        producer = confluent_kafka.Producer(options)
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(self.topic, cpu(1, 1), partition=0, headers=[(MESSAGE_ID_HEADER, b"a")])
        producer.flush()
        producer.abort_transaction()
        job = self.job()
        job.step()
        self.first(b"a", 0)
        self.assertEqual(0, job.step().results["duplicates"])
        self.assert_exact()


@periodic("CrashTest compares ids with one earlier batch, and RandomTest with many")
class BatchesTest(DuplicatesCase):
    def test_copies_of_messages_of_earlier_batches_do_not_count(self):
        job = self.job()
        self.first(b"a", 0, value=1)
        self.first(b"b", 1, value=2)
        job.step()
        self.again(b"a", 0, value=1)
        self.assertEqual(1, job.step().results["duplicates"])
        self.first(b"c", 0, value=4)
        self.again(b"b", 0, value=2)  # its own partition has no new messages
        self.assertEqual(1, self.job().step().results["duplicates"])
        self.assert_exact()

    def test_a_copy_outside_the_look_back_counts(self):
        job = self.job(duplicates_lookback=10)
        self.first(b"a", 0)
        self.fill(0, 9)
        job.step()
        self.again(b"a", 1)
        self.assertEqual(1, job.step().results["duplicates"])
        self.fill(0, 20)
        self.fill(1, 20)
        job.step()
        self.first(b"a", 1)
        self.assertEqual(0, job.step().results["duplicates"])
        self.assert_exact()

    def test_a_copy_of_a_message_removed_by_retention_counts(self):
        job = self.job()
        self.first(b"a", 0)
        self.fill(0, 5)
        job.step()
        self.cluster.admin.delete_records({TopicPartition(self.topic, 0): 4})
        self.first(b"a", 0)
        self.assertEqual(0, job.step().results["duplicates"])
        self.assert_exact()

    def test_copies_in_an_added_partition_do_not_count(self):
        job = self.job()
        self.first(b"a", 0)
        job.step()
        admin = confluent_kafka.admin.AdminClient(self.cluster.direct_options())
        admin.create_partitions([NewPartitions(self.topic, 3)])[self.topic].result(PATIENCE_SECONDS)
        self.partitions = 3
        self.wait_until(lambda: self.cluster.admin.partition_count(self.topic) == 3)
        self.producer = self.new_producer()
        self.again(b"a", 2)
        self.first(b"b", 2, value=2)
        job.step()
        self.again(b"b", 1, value=2)
        self.assertEqual(1, job.step().results["duplicates"])
        self.assert_exact()


class CrashTest(DuplicatesCase):
    # Rule 28
    def test_a_failed_batch_that_is_longer_when_repeated_counts_each_message_once(self):
        self.first(b"a", 0)
        self.job().step()
        self.again(b"a", 1)
        for number, point in enumerate(("after_staging", "inside_transaction")):
            name = b"b%d" % number
            self.again(name, 1, minute=2, value=2 + number)
            with failpoints.armed(f"pipeline.{point}", "raise"):
                self.assertRaises(failpoints.FailPointReached, self.job().step)
            # The repeated batch has this message first, and skips the one that counted in the failed batch.
            self.first(name, 0, minute=2, value=2 + number)
        self.assertEqual(3, self.job().step().results["duplicates"])
        self.assert_exact()

    def test_copies_of_a_batch_interrupted_after_its_commit_do_not_count(self):
        self.first(b"a", 0)
        with failpoints.armed("pipeline.after_commit", "raise"):
            self.assertRaises(failpoints.FailPointReached, self.job().step)
        self.again(b"a", 1)
        self.assertEqual(1, self.job().step().results["duplicates"])
        self.assert_exact()

    # Rule 28
    def test_a_message_counted_by_another_process_is_not_counted_again(self):
        first, second = self.job(), self.job()
        self.fill(0, 1)
        first.step()
        self.again(b"a", 0)
        stage = first._partials.stage

        def overtaken(*arguments, **options):
            staged = stage(*arguments, **options)
            self.first(b"a", 1)
            # It read the topic before the first copy arrived.
            with mock.patch.object(second._batches._topic, "extents", lambda: {0: Extent(0, 1), 1: Extent(0, 1)}):
                self.assertEqual(1, second.step().results["records"] // 2)
            return staged

        with mock.patch.object(first._partials, "stage", overtaken):
            self.assertRaises(Fenced, first.step)
        self.assertEqual(1, first.step().results["duplicates"])
        self.assert_exact()


class BackfillCase(DuplicatesCase):
    """The stream counts every copy; the option is set later."""

    def setUp(self):
        super().setUp()
        self.stream_job = self.job(duplicates_lookback=0)

    def backfill(self, history=None, **changes):
        job = self.job(**changes)
        spark = self.useFixture(SharedSpark()).session
        backfill = Backfill(spark, job._partials._settings, job._batches._topic, self.offset_store, 86_400_000, history)
        report = backfill.run(NOON_MS, NOON_MS + HOUR_MS)
        self.stream_job.step()
        return report.results["duplicates"]


class BackfillTest(BackfillCase):
    @periodic("the normal run contains BackfillTest of the stream")
    def test_a_backfill_counts_copies_once(self):
        self.first(b"a", 0, value=1)
        self.first(b"b", 1, value=2)
        self.fill(0, 3)
        self.again(b"a", 0, value=1)
        self.again(b"b", 0, value=2)
        self.stream_job.step()
        self.assertEqual(2, self.backfill(max_offsets_per_trigger=3))
        self.assert_exact()


@periodic("BackfillTest of test_pipeline_backfill reads an archive, and BackfillTest here leaves duplicates out")
class ArchivedBackfillTest(BackfillCase):
    def test_a_backfill_from_the_archive_and_kafka_counts_copies_once(self):
        self.first(b"a", 0, value=1)
        self.again(b"a", 1, value=1)
        self.first(b"b", 1, value=2)
        history = self.archived_history()
        self.again(b"b", 0, value=2)
        self.first(b"c", 0, value=4)
        self.stream_job.step()
        self.assertEqual(2, self.backfill(history))
        self.assert_exact()


class RandomTest(base.BaseTestCase):
    """Compare batches of a random log, as frames without Kafka, with a plain computation."""

    def setUp(self):
        super().setUp()
        self.spark = self.useFixture(SharedSpark()).session

    def test_a_plain_computation_skips_the_same_copies(self):
        random = Random(7)
        log = {partition: random.choices([None, *range(40)], k=60) for partition in range(3)}
        at, left_out = dict.fromkeys(log, 0), set()
        while any(at[partition] < 60 for partition in log):
            ends = {partition: min(60, start + random.choice([0, 7, 25])) for partition, start in at.items()}
            known, new = self.places({p: max(0, end - 12) for p, end in at.items()}, at), self.places(at, ends)
            seen, wanted = {log[p][o] for p, o in known}, set()
            for partition, offset in new:
                if log[partition][offset] in seen - {None}:
                    wanted.add((partition, offset))
                seen.add(log[partition][offset])
            found = repeated(self.frame(log, new), self.frame(log, known)).collect()
            self.assertEqual(sorted(wanted), sorted(map(tuple, found)))
            left_out |= wanted
            at = ends
        self.assertGreater(len(left_out), 50)

    def places(self, begins, ends):
        """Return each (partition, offset) of the ranges, in order."""
        return [
            (partition, offset) for partition in sorted(ends) for offset in range(begins[partition], ends[partition])
        ]

    def frame(self, log, places):
        rows = [(*place, _headers(log[place[0]][place[1]])) for place in places]
        return self.spark.createDataFrame(
            rows, "partition int, offset long, headers array<struct<key string, value binary>>"
        )


def _headers(number):
    return None if number is None else [("other", b"x"), (MESSAGE_ID_HEADER, b"%d" % number)]
