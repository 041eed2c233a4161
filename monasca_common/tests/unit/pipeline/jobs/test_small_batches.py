# SPDX-License-Identifier: Apache-2.0
"""Small batches, which the driver reads without Spark, with SQLite and the memory broker: message ids count once."""

from random import Random
from unittest import mock

import sqlalchemy as sa
from fixtures import MonkeyPatch

from monasca_common.kafka import KafkaConsumer, failpoints
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import TopicRecreated, TransportError
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.pipeline.errors import Fenced, RecordsLost
from monasca_common.pipeline.jobs.durations import StageSeconds
from monasca_common.pipeline.jobs.fenced_batch import FencedBatches
from monasca_common.pipeline.settings import BatchLimits, StreamSettings
from monasca_common.pipeline.source import small_batch
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.source.topic import Extent, SourceTopic
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase

POINTS = ("before_staging", "after_staging", "inside_transaction", "after_commit")
LOOKBACK = 1000


class Driver:
    """A process of a job that stores the value of each message that counts."""

    def __init__(self, case, lookback=LOOKBACK, most_offsets=10_000):
        stream = StreamSettings(
            case.kafka.consumer_settings(case.topic, "g"), case.kafka.producer_settings(), connection=case.url
        )
        self.topic = SourceTopic(stream.consumer)
        case.addCleanup(self.topic.close)
        limits = BatchLimits(lookback, most_offsets)
        self.batches = FencedBatches(None, "test", stream, limits, self.topic, case.offset_store, SystemClock())
        self.rows = []

    def step(self):
        return self.batches.run(self.batches.plan(), StageSeconds(SystemClock()), self.stage, self.merge)

    def stage(self, records, batch, counts):
        self.rows = [value for each in records.batches() for value in each.column("value").to_pylist()]
        return StagedAttempts(batch, (1,), len(self.rows))

    def merge(self, connection, staged):
        for value in self.rows:
            connection.execute(sa.text("INSERT INTO counted VALUES (:value)"), {"value": value.decode()})
        return len(self.rows)


class SmallBatchesCase(DatabaseCase):
    topic = "metrics"
    partitions = 3

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic(self.topic, self.partitions)
        self.producer = self.kafka.producer(linger_ms=0)
        with self.offset_store.writing() as connection:
            connection.execute(sa.text("CREATE TABLE counted (value TEXT)"))

    def send(self, *ids, partition=0):
        """Send a message per id, which is also its value. Messages are sent one by one, because a producer sends an id
        that is in flight only once."""
        for each in ids:
            record = Record(each.encode(), partition=partition, message_id=each.encode())
            self.producer.publish(self.topic, [record]).raise_for_undelivered()

    def counted(self):
        with self.offset_store.reading() as connection:
            return sorted(connection.execute(sa.text("SELECT value FROM counted")).scalars())

    def reads(self):
        """Return a list to which the ranges that drivers read from now on are appended."""
        ranges = []
        real = SourceTopic.read

        def read(topic, wanted, starts):
            ranges.extend(each for each in wanted if each.span)
            return real(topic, wanted, starts)

        patch = mock.patch.object(SourceTopic, "read", read)
        patch.start()
        self.addCleanup(patch.stop)
        return ranges


class DuplicatesTest(SmallBatchesCase):
    def test_a_copy_counts_once_in_its_batch_and_after_it(self):
        driver = Driver(self)
        self.send("a", "b", "a")
        self.send("a", "c", partition=1)
        self.assertEqual(2, driver.step().results["duplicates"])
        self.send("c", "d", partition=2)
        self.assertEqual(1, driver.step().results["duplicates"])
        self.assertEqual(["a", "b", "c", "d"], self.counted())

    def test_a_later_batch_reads_only_its_own_records(self):
        driver = Driver(self)
        self.send(*map(str, range(50)))
        driver.step()
        ranges = self.reads()
        self.send("new")
        driver.step()
        self.assertEqual([OffsetRange(0, 50, 51)], ranges)

    def test_a_driver_that_starts_reads_the_ids_of_the_look_back_once(self):
        self.send(*map(str, range(50)))
        Driver(self, lookback=20).step()
        ranges, driver = self.reads(), Driver(self, lookback=20)
        for number in ("49", "30", "50"):
            self.send(number, partition=1)
            driver.step()
        self.assertEqual([OffsetRange(0, 30, 50), *(OffsetRange(1, at, at + 1) for at in range(3))], ranges)
        self.assertEqual(51, len(self.counted()))

    def test_a_copy_farther_back_than_the_look_back_counts(self):
        driver = Driver(self, lookback=2)
        self.send("a", "b", "c")
        driver.step()
        self.send("b", "a")
        self.assertEqual(1, driver.step().results["duplicates"])
        self.assertEqual(["a", "a", "b", "c"], self.counted())

    def test_without_a_look_back_each_copy_counts(self):
        driver = Driver(self, lookback=0)
        self.send("a", "a")
        self.assertEqual(0, driver.step().results["duplicates"])
        self.assertEqual(["a", "a"], self.counted())

    def test_with_too_many_ids_for_memory_spark_computes_the_batch(self):
        self.useFixture(MonkeyPatch(f"{small_batch.__name__}.MOST_IDS", 1))
        driver = Driver(self)
        self.send("a", "b")
        driver.step()
        driver.batches._spark = mock.Mock()
        with mock.patch.object(driver.batches._records, "topic", side_effect=NotImplementedError("Spark")):
            self.send("c")
            self.assertRaises(NotImplementedError, driver.step)

    def test_after_offsets_move_back_their_ids_count_again(self):
        driver = Driver(self)
        self.send("a", "b")
        driver.step()
        with self.offset_store.writing() as connection:
            connection.execute(sa.text("UPDATE kafka_offset SET next = 1 WHERE partition = 0"))
        driver.step()
        self.assertEqual(["a", "b", "b"], self.counted())

    def test_a_partition_that_is_added_is_read(self):
        driver = Driver(self)
        self.send("a")
        driver.step()
        self.kafka.broker.add_partitions(self.topic, 4)
        self.producer = self.kafka.producer(linger_ms=0)
        self.send("a", "b", partition=3)
        self.assertEqual(1, driver.step().results["duplicates"])
        self.assertEqual(["a", "b"], self.counted())


class CrashTest(SmallBatchesCase):
    def test_a_driver_that_fails_at_any_point_and_repeats_the_batch_counts_each_id_once(self):
        driver = Driver(self)
        for number, point in enumerate(POINTS * 2):
            self.send(f"{number}", f"{number}", partition=1)
            with failpoints.armed(f"pipeline.{point}", "raise"):
                self.assertRaises(FailPointReached, driver.step)
            self.send(f"{number}")  # the batch reads this message before the copy that the failed batch has seen
            if number >= len(POINTS):
                driver = Driver(self)
            driver.step()
        self.assertEqual(sorted(map(str, range(8))), self.counted())

    def test_two_concurrent_drivers_count_each_id_once(self):
        random = Random(5)
        drivers = [Driver(self), Driver(self)]
        for number in range(60):
            ids = [str(random.randrange(max(0, number - 20), number + 1)) for _ in range(3)]
            self.send(*ids, partition=random.randrange(self.partitions))
            first, second = random.sample(drivers, 2)
            if random.random() < 0.4:
                self.overtaken(first, second)
            else:
                first.step()
        drivers[0].step()
        counted = self.counted()
        self.assertEqual(sorted(set(counted)), counted)
        self.assertEqual(set(self.log()), set(counted))

    def overtaken(self, slow, fast):
        stage = slow.stage

        def overtaken(*arguments):
            staged = stage(*arguments)
            fast.step()
            return staged

        with mock.patch.object(slow, "stage", overtaken):
            self.assertRaises(Fenced, slow.step)

    def log(self):
        consumer = self.kafka.consumer(
            self.topic, partitions=[TopicPartition(self.topic, number) for number in range(self.partitions)]
        )
        consumer.seek_to_beginning()
        found = []
        while batch := consumer.poll(timeout=0):
            found += [message.value.decode() for message in batch]
        return found


class ReadingTest(SmallBatchesCase):
    def test_records_that_arrive_after_planning_are_read_by_the_next_batch(self):
        driver = Driver(self)
        self.send("a")
        planned = driver.batches.plan()
        self.send("b")
        self.run_planned(driver, planned)
        self.assertEqual(["a"], self.counted())
        driver.step()
        self.assertEqual(["a", "b"], self.counted())

    def test_offsets_without_messages_at_the_end_of_a_range_are_skipped(self):
        driver = Driver(self)
        for name in ("a", "b"):
            self.send(name)
            self.kafka.broker.skip_offsets(self.topic, 0, 2)  # like control records
            self.assertEqual((3, 0), (driver.step().done, driver.step().done))
        self.assertEqual(["a", "b"], self.counted())

    def test_after_a_failed_read_the_batch_is_read_again(self):
        driver = Driver(self)
        self.send("a")
        driver.step()
        self.send("b")
        planned = driver.batches.plan()
        reader = driver.topic._reader
        with mock.patch.object(reader._consumer, "poll", side_effect=TransportError("no broker responds")):
            self.assertRaises(TransportError, self.run_planned, driver, planned)
        self.run_planned(driver, planned)
        self.assertEqual(["a", "b"], self.counted())

    def test_offsets_that_retention_removes_after_the_plan_are_an_error(self):
        driver = Driver(self)
        self.send("a", "b", "c")
        planned = driver.batches.plan()
        self.kafka.broker.delete_records(self.topic, 0, 2)
        self.assertRaises(TransportError, self.run_planned, driver, planned)
        self.assertRaises(RecordsLost, driver.step)

    def run_planned(self, driver, planned):
        return driver.batches.run(planned, StageSeconds(SystemClock()), driver.stage, driver.merge)

    def test_larger_batches_are_read_by_spark(self):
        driver = Driver(self, most_offsets=2)
        self.send("a", "b")
        starts = dict.fromkeys(range(self.partitions), 0)
        small = driver.batches._small
        self.assertIsNotNone(small.read([OffsetRange(0, 0, 2)], [], starts))
        self.assertIsNone(small.read([OffsetRange(0, 0, 3)], [], starts))
        self.useFixture(MonkeyPatch(f"{small_batch.__name__}.MOST_BYTES", 1))
        self.assertIsNone(small.read([OffsetRange(0, 0, 2)], [], starts))


class QueriesTest(SmallBatchesCase):
    """The consumer that queries the topic fetches until it is paused, also after a partition has moved."""

    def test_a_query_of_the_extents_discards_the_messages_that_were_fetched_before_a_pause(self):
        topic = Driver(self).topic
        topic.extents()
        self.assertIsNotNone(topic._consumer.health().seconds_since_poll)

    def test_an_error_of_discarding_does_not_fail_the_query(self):
        topic = Driver(self).topic
        error = TopicRecreated(self.topic, "old", "new")  # the stored topic id reports it, with the remedy
        with mock.patch.object(KafkaConsumer, "poll", side_effect=error):
            self.assertEqual(dict.fromkeys(range(self.partitions), Extent(0, 0)), topic.extents())
