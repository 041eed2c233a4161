# SPDX-License-Identifier: Apache-2.0
import itertools
import sys
import threading

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.kafka.message import OffsetAndEpoch, PartitionBatch, TopicPartition
from monasca_common.kafka.processor.offset_tracker import OffsetTracker

TP = TopicPartition("metrics", 0)
OTHER = TopicPartition("metrics", 1)


class Raw:
    def __init__(self, offset):
        self._offset = offset

    def offset(self):
        return self._offset


def part(offsets, epoch=1, partition=TP):
    return PartitionBatch(partition, epoch, [Raw(offset) for offset in offsets])


class TestOffsetTracker(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.tracker = OffsetTracker(max_span=10)

    def test_nothing_is_committable_before_something_is_done(self):
        self.tracker.received(part(range(5)))
        self.assertEqual({}, self.tracker.committable())

    def test_the_prefix_ends_at_the_first_gap(self):
        self.tracker.received(part(range(5)))
        for offset in (0, 1, 3, 4):
            self.tracker.done_range(TP, 1, offset, offset + 1)
        self.assertEqual({TP: OffsetAndEpoch(1, 2)}, self.tracker.committable())

    def test_closing_the_gap_releases_the_done_messages_after_it(self):
        self.tracker.received(part(range(3)))
        self.tracker.received(part(range(3, 6)))
        self.tracker.done_range(TP, 1, 1, 6)
        self.assertEqual({}, self.tracker.committable())
        self.tracker.done_range(TP, 1, 0, 1)
        self.assertEqual({TP: OffsetAndEpoch(1, 6)}, self.tracker.committable())

    def test_offsets_missing_from_the_log_are_not_a_gap(self):
        self.tracker.received(part([0, 5]))
        self.tracker.received(part([9, 10]))
        for offset in (0, 5, 9):
            self.tracker.done_range(TP, 1, offset, offset + 1)
        self.assertEqual({TP: OffsetAndEpoch(1, 10)}, self.tracker.committable())

    def test_confirmed_offsets_are_not_committable_again(self):
        self.tracker.received(part(range(3)))
        self.tracker.done_range(TP, 1, 0, 3)
        self.tracker.committed(self.tracker.committable())
        self.assertEqual({}, self.tracker.committable())

    def test_a_signal_handler_may_ask_for_the_progress_within_any_call(self):
        """Python runs signal handlers at calls."""
        self.tracker.received(part(range(3)))
        self.addCleanup(sys.setprofile, None)
        sys.setprofile(lambda *_: self.tracker.unfinished())
        self.tracker.received(part(range(3, 6)))
        self.tracker.done_range(TP, 1, 0, 4)
        self.tracker.committed({TP: OffsetAndEpoch(1, 4)})
        sys.setprofile(None)
        self.assertEqual({TP: 2}, self.tracker.unfinished())

    def test_an_earlier_epoch_is_ignored(self):
        self.tracker.received(part(range(3), epoch=2))
        self.tracker.done_range(TP, 1, 0, 1)
        self.tracker.received(part(range(10, 13), epoch=1))
        self.tracker.done_range(TP, 1, 10, 11)
        self.assertEqual({}, self.tracker.committable())

    def test_a_later_epoch_starts_again(self):
        self.tracker.received(part(range(3), epoch=1))
        self.tracker.done_range(TP, 1, 0, 1)
        self.tracker.received(part(range(1, 3), epoch=2))
        self.tracker.done_range(TP, 2, 1, 2)
        self.assertEqual({TP: OffsetAndEpoch(2, 2)}, self.tracker.committable())

    def test_messages_read_again_after_a_seek_count_as_unfinished(self):
        self.tracker.received(part(range(5)))
        self.tracker.done_range(TP, 1, 0, 5)
        self.tracker.received(part(range(2, 5)))
        self.assertEqual({}, self.tracker.committable())
        self.tracker.done_range(TP, 1, 2, 3)
        self.assertEqual({TP: OffsetAndEpoch(1, 3)}, self.tracker.committable())

    def test_an_end_that_is_reported_again_keeps_done_offsets(self):
        self.tracker.received(part(range(5)))
        for end in (7, 7, 9, 6):
            self.tracker.reached(PartitionBatch(TP, 1, (), 5, end))
            self.tracker.done_range(TP, 1, 5, end)
        self.assertEqual(({}, {TP: 5}), (self.tracker.committable(), self.tracker.unfinished()))
        self.tracker.done_range(TP, 1, 0, 5)
        self.assertEqual({TP: OffsetAndEpoch(1, 9)}, self.tracker.committable())

    def test_the_span_between_committed_and_received_is_bounded(self):
        self.tracker.received(part(range(9)))
        self.assertEqual(set(), self.tracker.full())
        self.tracker.received(part(range(9, 12)))
        self.tracker.done_range(TP, 1, 0, 12)
        self.assertEqual({TP}, self.tracker.full())
        self.tracker.committed(self.tracker.committable())
        self.tracker.received(part(range(12, 21)))
        self.assertEqual(set(), self.tracker.full())

    def test_unfinished_messages_are_counted(self):
        self.tracker.received(part(range(5)))
        self.tracker.received(part(range(2), partition=OTHER))
        self.tracker.done_range(TP, 1, 3, 4)
        self.tracker.done_range(OTHER, 1, 0, 2)
        self.assertEqual({TP: 4}, self.tracker.unfinished())

    def test_a_forgotten_partition_is_not_committed(self):
        self.tracker.received(part(range(2)))
        self.tracker.done_range(TP, 1, 0, 2)
        self.tracker.forget([TP])
        self.tracker.done_range(TP, 1, 0, 1)
        self.assertEqual({}, self.tracker.committable())


@st.composite
def polls_and_completions(draw):
    """Generate blocks of ascending offsets with gaps, and an order in which their messages are done."""
    offsets = sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=30)))
    cuts = sorted(draw(st.sets(st.integers(1, len(offsets)), max_size=4)) | {0, len(offsets)})
    blocks = [offsets[low:high] for low, high in itertools.pairwise(cuts)]
    return blocks, draw(st.permutations(offsets)), draw(st.integers(0, len(offsets)))


class TestTrackerAgainstItsDefinition(base.BaseTestCase):
    # Rule 13
    @given(polls_and_completions())
    def test_the_committable_offset_is_the_gap_free_prefix(self, case):
        blocks, order, count = case
        tracker = OffsetTracker(max_span=1000)
        for block in blocks:
            tracker.received(part(block))
        finished = set(order[:count])
        for offset in order[:count]:
            tracker.done_range(TP, 1, offset, offset + 1)
        prefix = []
        for offset in itertools.chain(*blocks):
            if offset not in finished:
                break
            prefix.append(offset)
        expected = {TP: OffsetAndEpoch(1, prefix[-1] + 1)} if prefix else {}
        self.assertEqual(expected, tracker.committable())
        self.assertEqual(len(order) - count, tracker.unfinished().get(TP, 0))

    @given(polls_and_completions())
    def test_intermediate_commits_change_no_result(self, case):
        blocks, order, _count = case
        tracker = OffsetTracker(max_span=1)
        for block in blocks:
            tracker.received(part(block))
        for offset in order:
            tracker.done_range(TP, 1, offset, offset + 1)
            tracker.committed(tracker.committable())
        self.assertEqual(set(), tracker.full())
        self.assertEqual({}, tracker.unfinished())


class AskingPartition(TopicPartition):
    """Calls the tracker while the tracker looks it up, like a signal handler that runs at that point."""

    tracker = None

    def __hash__(self):
        if self.tracker is not None:
            self.tracker.committable()
        return hash(tuple(self))


class TestInterruptedTracker(base.BaseTestCase):
    def test_a_signal_handler_may_call_the_client_on_the_interrupted_thread(self):
        tracker = OffsetTracker(max_span=1000)
        tracker.received(part([0]))
        asking = AskingPartition(*TP)
        asking.tracker = tracker
        thread = threading.Thread(target=tracker.done_range, args=(asking, 1, 0, 1), daemon=True)
        thread.start()
        thread.join(50)
        self.assertFalse(thread.is_alive())
