# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.base import PartitionEvent
from monasca_common.kafka.transport.raw_messages import grouped
from monasca_common.tests.unit.kafka.raw_message import FakeMessage

TOPICS = ("logs", "metrics")


def messages(names):
    return [FakeMessage(topic, number, b"%d" % index) for index, (topic, number) in enumerate(names)]


class TestGrouped(base.BaseTestCase):
    @given(st.lists(st.tuples(st.just("metrics"), st.integers(0, 3)), min_size=1))
    def test_messages_of_one_topic_are_grouped_by_partition_in_order(self, names):
        self._check(("metrics",), names)

    @given(st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 3)), min_size=1))
    def test_several_topics_are_grouped_by_topic_and_partition(self, names):
        self._check(TOPICS, names)

    def _check(self, topics, names):
        raws = messages(names)
        fetched = grouped(raws, FakeMessage, topics, str)
        self.assertEqual(set(names), {partition for partition, _ in fetched.parts})
        self.assertEqual(len(set(names)), len(fetched.parts))
        for partition, columns in fetched.parts:
            self.assertIsInstance(partition, TopicPartition)
            expected = [raw.value() for raw in raws if (raw.topic(), raw.partition()) == partition]
            self.assertEqual((len(expected), expected), (len(columns), columns.column("values")))

    def test_an_error_anywhere_is_an_event(self):
        raws = messages([("metrics", 0)] * 3)
        self.assertEqual([], grouped(raws, FakeMessage, ("metrics",), str).events)
        raws[1:1] = [FakeMessage.about(TopicPartition("metrics", 0), 7, 5)]
        fetched = grouped(raws, FakeMessage, ("metrics",), str)
        self.assertEqual([PartitionEvent("7", "metrics", 0, 5)], fetched.events)
        self.assertEqual([b"0", b"1", b"2"], fetched.parts[0][1].column("values"))
