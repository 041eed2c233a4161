# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from testtools.matchers import Contains

from monasca_common.pipeline.errors import RecordsLost
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.source.ranges import below, plan, share
from monasca_common.pipeline.source.topic import Extent
from monasca_common.storage.errors import TopicMismatch
from monasca_common.tests.unit.pipeline.database_case import SOURCE, DatabaseCase


class TopicOfTest:
    """The state of a topic in Kafka. ``start``: the offset at which the option of this name starts, by partition."""

    def __init__(self, start=0, **extents):
        self.start = start
        self.asked = []
        self.log = {int(name[1:]): Extent(*extent) for name, extent in extents.items()}
        self.after_extents = lambda: None

    def extents(self):
        found = self.log
        self.after_extents()
        return found

    def starts(self, partitions):
        self.asked += partitions
        return dict.fromkeys(partitions, self.start)


class NextRangesTest(DatabaseCase):
    def ranges(self, topic, most=1000):
        planned = plan(topic, self.offset_store, SOURCE, most)
        return list(planned.ranges), planned.behind

    def test_the_first_batch_starts_as_configured(self):
        ranges, behind = self.ranges(TopicOfTest(7, p0=(5, 10), p1=(0, 7)))
        self.assertEqual(([OffsetRange(0, 7, 10)], 0), (ranges, behind))
        self.assertEqual({0: 7, 1: 7}, self.offset_store.next_offsets(SOURCE))

    def test_the_next_batch_starts_at_the_stored_offset_without_a_lookup(self):
        topic = TopicOfTest(7, p0=(5, 10))
        self.ranges(topic)
        self.advance((0, 7, 10))
        topic.log = {0: Extent(5, 12)}
        self.assertEqual([OffsetRange(0, 10, 12)], self.ranges(topic)[0])
        self.assertEqual([0], topic.asked)

    def test_an_added_partition_is_read_from_its_start_regardless_of_the_option(self):
        self.ranges(TopicOfTest(7, p0=(0, 10)))
        topic = TopicOfTest(7, p0=(0, 10), p1=(0, 9))
        self.assertEqual([OffsetRange(0, 7, 10), OffsetRange(1, 0, 9)], self.ranges(topic)[0])
        self.assertEqual([], topic.asked)

    def test_a_batch_is_divided_in_proportion_to_the_backlogs(self):
        ranges, behind = self.ranges(TopicOfTest(p0=(0, 80), p1=(0, 20), p2=(0, 0)), most=10)
        self.assertEqual(([OffsetRange(0, 0, 8), OffsetRange(1, 0, 2)], 90), (ranges, behind))

    def test_a_partition_without_new_messages_has_no_range(self):
        self.assertEqual(([], 0), self.ranges(TopicOfTest(5, p0=(5, 5))))

    def test_unread_offsets_removed_by_retention_are_an_error_with_their_number_and_the_remedy(self):
        self.offset_store.begin(SOURCE, {0: 3})
        error = self.assertRaises(RecordsLost, self.ranges, TopicOfTest(p0=(10, 20)))
        for text in ("metrics/0", "offset is 3,", "begins at 10", "removed 7 offsets", SOURCE.group):
            self.assertThat(str(error), Contains(text))

    def test_the_remedy_moves_one_partition_and_never_to_a_counted_offset(self):
        self.offset_store.begin(SOURCE, {0: 30, 1: 3})
        for extents, target in (
            ({"p0": (0, 30), "p1": (10, 20)}, "--topic metrics:1 --to-earliest"),
            ({"p0": (0, 20), "p1": (0, 20)}, "--topic metrics:0 --to-offset 20"),
        ):
            error = self.assertRaises(RecordsLost, self.ranges, TopicOfTest(**extents))
            self.assertThat(str(error), Contains(f"offsets reset --group {SOURCE.group} {target}`"))

    def test_a_log_that_ends_before_the_stored_offset_is_an_error(self):
        self.offset_store.begin(SOURCE, {0: 30})
        error = self.assertRaises(RecordsLost, self.ranges, TopicOfTest(p0=(0, 20)))
        self.assertThat(str(error), Contains("the log ends at 20"))

    def test_a_batch_of_another_process_during_planning_is_not_a_truncated_log(self):
        self.offset_store.begin(SOURCE, {0: 3})
        topic = TopicOfTest(p0=(0, 10))

        def overtake():
            topic.log = {0: Extent(0, 12)}
            self.advance((0, 3, 12))

        topic.after_extents = overtake
        # The batch is fenced when it is stored.
        self.assertEqual([OffsetRange(0, 3, 10)], self.ranges(topic)[0])

    def test_messages_that_arrive_before_the_start_offset_is_resolved_are_not_a_truncated_log(self):
        topic = TopicOfTest(12, p0=(0, 10))

        def grow():
            topic.log = {0: Extent(0, 15)}

        topic.after_extents = grow
        self.assertEqual([OffsetRange(0, 12, 15)], self.ranges(topic)[0])

    def test_another_topic_of_the_same_name_is_not_read(self):
        self.offset_store.begin(SOURCE, {0: 3})
        other = replace(SOURCE, topic_id="another")
        self.assertRaises(TopicMismatch, plan, TopicOfTest(p0=(0, 20)), self.offset_store, other, 10)

    def test_the_look_back_ends_at_the_stored_offset_and_at_the_start_of_the_log(self):
        found = below({0: 100, 1: 3, 2: 0, 3: 50, 4: 5}, {0: 0, 1: 0, 3: 45, 4: 9}, 10)
        wanted = [(0, 90, 100), (1, 0, 3), (2, 0, 0), (3, 45, 50), (4, 5, 5)]
        self.assertEqual([OffsetRange(*each) for each in wanted], found)

    @given(st.dictionaries(st.integers(0, 9), st.integers(-2, 10**9)), st.integers(1, 10**9))
    def test_each_partition_with_a_backlog_has_a_share_of_at_most_its_backlog(self, backlog, most):
        shares = share(backlog, most)
        behind = {partition: count for partition, count in backlog.items() if count > 0}
        self.assertEqual(behind.keys(), shares.keys())
        for partition, count in shares.items():
            self.assertTrue(1 <= count <= behind[partition])
        self.assertLessEqual(sum(shares.values()), most + len(shares))
