# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.consumer.poll_results import Grouping
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.memory.record import MemoryMessage

TOPICS = ("logs", "metrics")


def messages(names):
    return [MemoryMessage(topic, number, b"%d" % index) for index, (topic, number) in enumerate(names)]


class TestGrouping(base.BaseTestCase):
    @given(st.lists(st.tuples(st.just("metrics"), st.integers(0, 3)), min_size=1))
    def test_one_topic_is_grouped_by_partition_in_order(self, names):
        self._check(Grouping(MemoryMessage, ("metrics",)), names)

    @given(st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 3)), min_size=1))
    def test_several_topics_are_grouped_by_both(self, names):
        self._check(Grouping(MemoryMessage, TOPICS), names)

    def _check(self, grouping, names):
        raws = messages(names)
        groups = grouping(raws)
        self.assertEqual(set(names), set(groups))
        for partition, run in groups.items():
            self.assertIsInstance(partition, TopicPartition)
            expected = [raw.value() for raw in raws if (raw.topic(), raw.partition()) == partition]
            self.assertEqual(expected, [raw.value() for raw in run])

    def test_an_error_anywhere_is_seen(self):
        raws = messages([("metrics", 0)] * 3)
        grouping = Grouping(MemoryMessage, ("metrics",))
        self.assertFalse(grouping.has_errors(raws))
        raws[1:1] = [MemoryMessage.about(TopicPartition("metrics", 0), "an error")]
        self.assertTrue(grouping.has_errors(raws))
