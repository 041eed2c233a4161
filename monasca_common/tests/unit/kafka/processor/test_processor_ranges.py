# SPDX-License-Identifier: Apache-2.0
"""Ranges of handlers: `start_offset` to `next_offset` has no gap, regardless of earlier failures."""

import threading

from monasca_common.kafka import plugins
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import Poison, ReadFrom, RetryLater
from monasca_common.tests.unit.kafka.processor.processor_case import GROUP, IN, ONCE, ProcessorCase


class Table:
    """A database that stores ranges, and refuses a range that begins after its last offset."""

    def __init__(self):
        self.next = 0
        self.rows = []
        self.refused = 0

    def __call__(self, part):
        bad = {index: f"row {value!r}" for index, value in enumerate(part.values) if value.startswith(b"bad")}
        if bad:
            raise Poison("bad rows", reasons=bad)
        if part.start_offset > self.next:
            self.refused += 1
            raise ReadFrom(self.next)
        self.rows += [value for value, at in zip(part.values, part.offsets, strict=True) if at >= self.next]
        self.next = max(self.next, part.next_offset)


class RangeTest(ProcessorCase):
    def ranges_of(self, *values, batch_size=10, handler=None, **choices):
        """Return the ranges that a handler stored, after it received every value."""
        self.fill(*values)
        table, ranges = Table(), []

        def watch(part):
            (handler or table)(part)
            ranges.append((part.start_offset, part.next_offset))

        self.start(watch, settings={"batch_size": batch_size}, **choices)
        self.until(lambda: self.committed() == len(values))
        return ranges, table

    def test_a_range_begins_at_the_end_of_the_previous_range(self):
        ranges, _ = self.ranges_of(*[b"x"] * 7, batch_size=3)
        self.assertEqual([(0, 3), (3, 6), (6, 7)], ranges)

    # Rule 22
    def test_dead_letters_are_part_of_the_range_after_them(self):
        ranges, table = self.ranges_of(b"bad1", b"bad2", b"3", b"bad4", b"5", batch_size=2)
        self.assertEqual([(0, 4), (4, 5)], ranges)
        self.assertEqual([b"3", b"5"], table.rows)
        self.assertEqual(0, table.refused)

    # Rule 22
    def test_halves_of_a_batch_that_failed_join_without_a_gap(self):
        def handler(part):
            if b"bad" in part.values:
                raise ValueError("somewhere in here")

        ranges, _ = self.ranges_of(b"bad", b"2", b"3", b"bad", b"5", handler=handler, retry=ONCE)
        ends = [0] + [end for _, end in ranges]
        self.assertEqual(ends[:-1], [start for start, _ in ranges])
        self.assertEqual(5, ends[-1])

    def test_a_range_that_waits_for_a_dependency_stays_the_same(self):
        seen = []

        def handler(part):
            seen.append((part.start_offset, part.next_offset))
            if len(seen) == 1:
                raise RetryLater(0.1)

        self.ranges_of(b"1", b"2", handler=handler)
        self.assertEqual([(0, 2), (0, 2)], seen)

    def test_each_dead_letter_has_its_own_reason(self):
        self.ranges_of(b"bad1", b"2", b"bad3")
        reasons = [
            value.decode()
            for message in self.broker.records("in.dlq")
            for name, value in message.headers
            if name == "dead-letter-error-text"
        ]
        self.assertEqual(["row b'bad1'", "row b'bad3'"], reasons)


class ReadFromTest(ProcessorCase):
    # Rule 22
    def test_a_handler_receives_messages_again_from_the_offset_it_requests(self):
        self.fill(b"1", b"2", b"3", b"4")
        table = Table()
        self.start(table, settings={"batch_size": 2})
        self.until(lambda: self.committed() == 4)
        table.next, table.rows = 1, [b"1"]  # a backup of the database was restored
        self.fill(b"5")
        self.until(lambda: self.committed() == 5 and table.next == 5)
        self.assertEqual([b"1", b"2", b"3", b"4", b"5"], table.rows)
        self.assertGreater(table.refused, 0)
        self.assertEqual([], self.values("in.dlq"))

    def test_a_persistent_cause_is_retried_with_pauses(self):
        self.fill(b"1")
        calls = []

        def handler(part):
            calls.append(self.clock.monotonic())
            raise ReadFrom(0)

        self.start(handler)
        self.pass_time(2, step=0.05)
        self.assertLess(len(calls), 15)
        self.assertEqual(0, self.committed())

    def test_a_late_rewind_drops_no_newer_messages(self):
        self.fill(b"1")
        go_on, calls = threading.Event(), []

        def handler(part):
            calls.append(part.values)
            if len(calls) == 1:
                go_on.wait(50)
                raise ReadFrom(0)

        self.start(handler)
        self.until(lambda: calls)
        self.broker.expire_member(GROUP, self.broker.members(GROUP)[0])
        self.pass_time(5)  # it rejoins, and receives the message again, which waits for the thread
        go_on.set()
        self.until(lambda: self.committed() == 1)
        self.assertEqual([[b"1"], [b"1"]], calls)

    def test_a_rewind_for_one_key_includes_unfinished_messages_of_other_keys(self):
        self.fill(b"slow", key=b"d")
        self.fill(b"asks", key=b"a")
        go_on, handled, asked = threading.Event(), [], []

        def handler(message):
            if message.value == b"slow" and not asked:
                go_on.wait(50)
                raise RetryLater
            if message.value == b"asks" and not asked:
                asked.append(True)
                go_on.set()
                raise ReadFrom(1)
            handled.append(message.value)

        self.start(handler, per_message=True, order="key", threads=2)
        self.until(lambda: self.committed() == 2)
        self.assertEqual([b"asks", b"slow"], sorted(handled))


class StartOfAListenerTest(ProcessorCase):
    def test_start_offsets_can_be_resolved_without_the_commits_of_the_group(self):
        self.fill(b"1", b"2")
        committing = self.consumer()
        self.until(lambda: committing.poll(10, 0).partitions)
        self.unhurried(lambda: committing.commit({IN: 2}))
        self.unhurried(lambda: committing.close(0))
        found = []

        class FromElsewhere(RebalanceListener):
            def assigned(self, partitions):
                found.append(consumer.resolve_starts(partitions))
                return found[-1]

        consumer = plugins.memory_consumer(self.kafka.consumer_settings("in", GROUP), listener=FromElsewhere())
        self.addCleanup(self.unhurried, lambda: consumer.close(0))
        batches = []
        self.until(lambda: batches.append(consumer.poll(10, 0)) or batches[-1].partitions)
        self.assertEqual([{IN: 0}], found)
        self.assertEqual([b"1", b"2"], list(batches[-1].partitions[0].values))

    def test_the_ids_of_topics_can_be_requested(self):
        consumer = self.consumer()
        before = consumer.topic_ids()
        self.assertEqual(["in"], list(before))
        self.broker.delete_topic("in")
        self.broker.create_topic("in", 1)
        self.assertNotEqual(before["in"], consumer.topic_ids()["in"])
