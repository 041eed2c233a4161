# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.runtime.member_health import MemberHealth, MemberState, MemberStatus
from monasca_common.storage.errors import TopicMismatch
from monasca_common.storage.fence import StoredNext
from monasca_common.storage.start_offsets import StartOffsets
from monasca_common.storage.writer_pool import WriterPool
from monasca_common.tests.unit.persister.memory_storage import MemoryStorage

ONE, TWO = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


class StoredStartsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("metrics", 2)
        self.storage = MemoryStorage()
        self.health = MemberHealth(MemberStatus("metrics-0"), SystemClock())
        self.health.begin()
        self.failures = []

    def starts(self, **changes):
        starts = StartOffsets(WriterPool(self.storage), self.health, self.failures.append)
        self.consumer = self.kafka.consumer("metrics", "g", **changes)
        starts.attach(self.consumer)
        return starts

    def fill(self, count, partition=0):
        records = [Record(b"x", partition=partition)] * count
        self.kafka.producer().publish("metrics", records).raise_for_undelivered()

    def stored(self, partition):
        return self.storage.next["g", *partition].next_offset

    def test_start_offsets_of_the_database_override_those_of_kafka(self):
        self.fill(9)
        starts = self.starts()
        topic_id = self.consumer.topic_ids().get("metrics")
        self.storage.next = {("g", *ONE): StoredNext(4, topic_id), ("g", *TWO): StoredNext(0, topic_id)}
        self.consumer.poll()
        self.consumer.commit({ONE: 8})
        self.assertEqual({ONE: 4}, starts.assigned([ONE]))

    def test_a_new_group_starts_all_partitions_as_configured(self):
        self.fill(3)
        self.assertEqual({ONE: 3}, self.starts(start="latest").assigned([ONE]))
        self.assertEqual((3, 0), (self.stored(ONE), self.stored(TWO)))

    def test_an_added_partition_starts_at_its_first_message_even_with_latest(self):
        starts = self.starts(start="latest")
        starts.assigned([ONE, TWO])
        del self.storage.next["g", *TWO]
        self.fill(5, partition=1)
        self.assertEqual({TWO: 0}, starts.assigned([TWO]))

    def test_start_offsets_of_another_member_are_used(self):
        starts = self.starts()
        starts.assigned([ONE])
        self.storage.next["g", *TWO] = StoredNext(7, self.storage.next["g", *TWO].topic_id)
        self.assertEqual({TWO: 7}, starts.assigned([TWO]))

    def test_an_unavailable_database_raises_and_is_reported(self):
        self.storage.away(1)
        starts = self.starts()
        self.assertRaises(MessagingError, starts.assigned, [ONE])
        self.assertEqual(MemberState.WAITING_FOR_DATABASE, self.health.report(None).state)
        self.assertEqual({ONE: 0}, starts.assigned([ONE]))
        self.assertEqual(MemberState.RUNNING, self.health.report(None).state)

    def test_a_recreated_topic_ends_the_member(self):
        self.storage.next = {("g", *ONE): StoredNext(4, "the former topic's")}
        starts = self.starts()
        self.assertRaises(MessagingError, starts.assigned, [ONE])
        self.assertEqual([TopicMismatch], [type(error) for error in self.failures])
