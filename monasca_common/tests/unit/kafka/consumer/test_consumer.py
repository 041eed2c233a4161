# SPDX-License-Identifier: Apache-2.0
"""Situations that contract and functional tests cannot create: rebalances during a poll, errors on demand."""

import contextlib
import gc
import traceback
import weakref
from typing import Any, ClassVar, cast
from unittest import mock

from confluent_kafka import OFFSET_INVALID, Message
from oslotest import base

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.poll_results import REPEAT_SECONDS
from monasca_common.kafka.consumer.rebalance import RETRY_SECONDS, GivenStarts, RebalanceListener
from monasca_common.kafka.consumer.start_offsets import FIRST_OWNER_SECONDS
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    FatalError,
    MessagingError,
    MisuseError,
    OffsetOutOfRange,
    RetriableError,
    TransportError,
)
from monasca_common.kafka.message import MessageColumns, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.kafka.transport.base import BEGINNING, END, ConsumerTransport, Fetched, PartitionEvent
from monasca_common.kafka.transport.memory import VirtualClock

A, B = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


def message(partition, offset):
    return Message(*partition, offset, value=b"%d" % offset)


def failure(partition, error, offset=OFFSET_INVALID):
    """Return an element of a poll that has an error and no message."""
    return Message(*partition, offset, error=error)


def end(partition, offset):
    return failure(partition, TransportError("the end", name="_PARTITION_EOF"), offset)


class ScriptedTransport(ConsumerTransport):
    """Each poll runs the next step: a function of the rebalance callbacks that returns what was fetched."""

    driver = "scripted"

    def __init__(self):
        self.clock = VirtualClock()
        self.steps = []
        self.stored = {A: 0, B: 0}
        self.sought = []
        self.paused = set()
        self.given: dict[TopicPartition, int] = {}
        self.calls = []
        self.failing = None

    def subscribe(self, topics, callbacks):
        self.callbacks = callbacks

    def poll(self, max_messages, timeout):
        messages = self.steps.pop(0)(self.callbacks) if self.steps else []
        parts = {}
        for each in messages:
            if each.error() is None:
                parts.setdefault(TopicPartition(each.topic(), each.partition()), []).append(each)
        events = [
            PartitionEvent(each.error(), each.topic(), each.partition(), each.offset())
            for each in messages
            if each.error() is not None
        ]
        return Fetched([(partition, MessageColumns(run)) for partition, run in parts.items()], events)

    def assign_owned(self, positions):
        self.given.update(positions)

    def assign(self, positions):
        self.given = dict(positions)

    def assignment(self):
        return set(self.given)

    def pause(self, partitions):
        self.paused.update(partitions)

    def resume(self, partitions):
        self.paused.difference_update(partitions)

    def seek(self, partition, offset):
        self.sought.append((partition, offset))

    def commit(self, offsets):
        self.calls.append(("commit", dict(offsets)))
        self.stored.update(offsets)
        return dict.fromkeys(offsets)

    def committed(self, partitions, timeout):
        if self.failing is not None:
            raise self.failing
        self.calls.append(("committed", sorted(partitions)))
        return {partition: self.stored.get(partition) for partition in partitions}

    def fetched_ends(self, partitions):
        return dict.fromkeys(partitions, 50)

    def offsets_for_times(self, times_ms, timeout):
        return {partition: {BEGINNING: 3, END: 50}.get(at, 20) for partition, at in times_ms.items()}

    def partition_count(self, topic, timeout):
        return 2

    def topic_ids(self, topics, timeout):
        return {}

    def group_metadata(self):
        return None

    def close(self):
        self.calls.append(("close", None))


class ConsumerCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.transport = cast(Any, ScriptedTransport())
        self.clock = self.transport.clock

    def consumer(self, **changes: Any) -> KafkaConsumer:
        options = {name: changes.pop(name, None) for name in ("listener", "partitions")}
        connection = ConnectionSettings("nowhere:9092")
        fields = {"connection": connection, "topics": ("metrics",), "group_id": "group", "topic_check_seconds": 0.0}
        consumer = KafkaConsumer(ConsumerSettings(**{**fields, **changes}), self.transport, **options)
        self.addCleanup(consumer.close)
        return consumer

    def script(self, *steps):
        self.transport.steps += steps


def assign(*partitions):
    def step(callbacks):
        callbacks.on_assign(list(partitions))
        return []

    return step


class TestRebalancesWithinAPoll(ConsumerCase):
    # Rule 15
    def test_rows_of_a_partition_revoked_in_the_meantime_are_dropped(self):
        def revoke_b(callbacks):
            callbacks.on_revoke([B])
            return [message(A, 0), message(B, 0), message(A, 1)]

        self.script(assign(A, B), revoke_b)
        consumer = self.consumer()
        consumer.poll(timeout=0)
        batch = consumer.poll(timeout=0)
        self.assertEqual([(A, [0, 1])], [(part.topic_partition, part.offsets) for part in batch.partitions])

    # Rule 15
    def test_rows_of_a_partition_that_was_revoked_and_assigned_again_are_dropped_and_read_again(self):
        def come_and_go(callbacks):
            callbacks.on_revoke([A])
            callbacks.on_assign([A])
            return [message(A, 7), message(A, 8)]

        self.transport.stored[A] = 5
        self.script(assign(A), come_and_go)
        consumer = self.consumer()
        consumer.poll(timeout=0)
        self.assertEqual(0, len(consumer.poll(timeout=0)))
        self.assertEqual([(A, 5)], self.transport.sought)

    def test_messages_before_the_position_are_dropped_and_the_others_are_read_again(self):
        self.transport.stored[A] = 5
        self.script(
            assign(A, B),
            lambda _: [message(A, 3), message(A, 5), message(B, 0), end(A, 6)],
            lambda _: [message(A, 5), end(A, 6)],
        )
        consumer = self.consumer()
        consumer.poll(timeout=0)
        self.assertEqual([(B, [0])], [(part.topic_partition, part.offsets) for part in consumer.poll().partitions])
        self.assertEqual(({}, (A, 5)), (consumer.take_ends(), self.transport.sought[-1]))
        self.assertEqual([(A, [5])], [(part.topic_partition, part.offsets) for part in consumer.poll().partitions])
        self.assertEqual({A: (1, 6)}, consumer.take_ends())

    def test_a_batch_that_returns_to_earlier_offsets_is_dropped_and_read_again(self):
        self.transport.stored[A] = 5
        self.script(assign(A), lambda _: [message(A, offset) for offset in (5, 6, 0, 1, 9)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        self.assertEqual(0, len(consumer.poll(timeout=0)))
        self.assertEqual(([(A, 5)], 5), (self.transport.sought, consumer.position(A)))

    def test_messages_fetched_before_a_seek_within_a_callback_are_dropped(self):
        class Rewinding(RebalanceListener):
            def revoked(self, partitions, deadline):
                consumer.seek(A, 2)

        def revoke_b(callbacks):
            callbacks.on_revoke([B])
            return [message(A, 7), message(A, 8), end(A, 9)]

        self.transport.stored[A] = 7
        self.script(assign(A, B), revoke_b, lambda _: [message(A, 2), message(A, 3)])
        consumer = self.consumer(listener=Rewinding())
        consumer.poll(timeout=0)
        self.assertEqual((0, {}, 2), (len(consumer.poll(timeout=0)), consumer.take_ends(), consumer.position(A)))
        [part] = consumer.poll(timeout=0).partitions
        self.assertEqual((2, [2, 3]), (part.start_offset, part.offsets))

    def test_rows_that_come_with_the_first_assignment_are_kept(self):
        def assign_and_fetch(callbacks):
            callbacks.on_assign([A])
            return [message(A, 0)]

        self.script(assign_and_fetch)
        self.assertEqual(1, len(self.consumer().poll(timeout=0)))

    def test_the_poll_after_an_interrupted_one_returns_its_messages(self):
        def interrupt(callbacks):
            raise KeyboardInterrupt

        self.script(assign(A), lambda _: [message(A, 0), message(A, 1)], interrupt)
        consumer = self.consumer()
        consumer.poll(timeout=0)
        consumer.poll(timeout=0)
        self.assertRaises(KeyboardInterrupt, consumer.poll, timeout=0)
        consumer.poll(timeout=0)
        self.assertEqual([(A, 2)], self.transport.sought)

    def test_an_interrupted_first_call_is_repeated_by_the_next_one(self):
        for method, partitions in (("subscribe", None), ("assign", [A])):
            consumer = self.consumer(partitions=partitions)
            with mock.patch.object(self.transport, method, side_effect=KeyboardInterrupt):
                self.assertRaises(KeyboardInterrupt, consumer.poll, timeout=0)
            self.script(*([] if partitions else [assign(A)]), lambda _: [message(A, 0)])
            self.assertEqual(1, sum(len(consumer.poll(timeout=0)) for _ in range(2)))
            consumer.close()

    def test_the_poll_after_an_interrupt_returns_the_fetched_messages(self):
        def fetch_and_interrupt_later(callbacks):
            self.clock.monotonic = interrupt
            return [message(A, 2), message(A, 3), failure(B, AuthorizationError("no", name="NO"))]

        def interrupt():
            del self.clock.monotonic
            raise KeyboardInterrupt

        self.script(assign(A), lambda _: [message(A, 0), message(A, 1)], fetch_and_interrupt_later)
        consumer = self.consumer()
        consumer.poll(timeout=0)
        consumer.poll(timeout=0)
        self.assertRaises(KeyboardInterrupt, consumer.poll, timeout=0)
        consumer.poll(timeout=0)
        self.assertEqual([(A, 2)], self.transport.sought)

    def test_an_interrupt_while_the_end_of_a_log_is_noted_loses_no_message(self):
        self.script(assign(A), lambda _: [message(A, 0)], lambda _: [message(A, 1), end(A, 5)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        consumer.poll(timeout=0)
        with mock.patch.object(consumer._assignment, "reach_ends", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, consumer.poll, timeout=0)
        consumer.poll(timeout=0)
        self.assertEqual([(A, 1)], self.transport.sought)

    def test_the_end_of_a_log_is_reported_under_the_epoch_in_which_it_was_reached(self):
        self.script(assign(A), lambda _: [message(A, 0), end(A, 5)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        self.assertEqual(1, len(consumer.poll(timeout=0)))
        self.assertEqual({A: (1, 5)}, consumer.take_ends())
        self.assertEqual(({}, 1), (consumer.take_ends(), consumer.position(A)))

    def test_a_poll_continues_to_wait_for_a_message_when_only_an_end_is_reached(self):
        self.script(assign(A), lambda _: [end(A, 5)], lambda _: [message(A, 5)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        self.assertEqual(1, len(consumer.poll(timeout=1.0)))
        self.assertEqual({A: (1, 5)}, consumer.take_ends())

    def test_the_end_of_a_reassigned_partition_is_reported_when_it_is_reached_again(self):
        def take_and_give_again(callbacks):
            callbacks.on_lost([A])
            callbacks.on_assign([A])
            return [end(A, 5)]

        self.transport.stored[A] = 3
        self.script(assign(A), take_and_give_again, lambda _: [end(A, 5)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        consumer.poll(timeout=0)
        self.assertEqual({}, consumer.take_ends())
        self.assertEqual([(A, 3)], self.transport.sought)  # otherwise, the client would not report the end again
        consumer.poll(timeout=0)
        self.assertEqual({A: (2, 5)}, consumer.take_ends())

    def test_an_end_that_was_not_taken_before_a_seek_is_forgotten(self):
        self.script(assign(A), lambda _: [end(A, 5)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        consumer.poll(timeout=0)
        consumer.seek(A, 0)
        self.assertEqual({}, consumer.take_ends())

    def test_an_error_lost_by_an_interrupt_is_reported(self):
        def interrupt():
            del self.clock.monotonic
            raise KeyboardInterrupt

        def fail_and_interrupt_later(callbacks):
            consumer._errors.report_client_error(AuthenticationError("bad password", name="_AUTHENTICATION"))
            self.clock.monotonic = interrupt
            return []

        self.script(fail_and_interrupt_later)
        consumer = self.consumer()
        self.assertRaises(KeyboardInterrupt, consumer.poll, timeout=0)
        self.assertEqual(1, len(consumer.poll(timeout=0).errors))

    def test_an_assignment_whose_callback_was_interrupted_is_completed_later(self):
        def strike(callbacks):
            self.transport.given = {A: -1001}
            raise KeyboardInterrupt

        self.script(strike)
        consumer = self.consumer()
        self.assertRaises(KeyboardInterrupt, consumer.poll, timeout=0)
        consumer.poll(timeout=0)
        self.assertEqual((0, {A: 0}), (consumer.position(A), self.transport.given))

    def test_a_pause_ends_with_the_assignment(self):
        self.script(assign(A))
        consumer = self.consumer()
        consumer.poll(timeout=0)
        consumer.pause([A, B])
        self.assertEqual({A}, self.transport.paused)
        self.transport.callbacks.on_revoke([A])
        self.transport.callbacks.on_assign([A])
        self.assertEqual(set(), self.transport.paused)


class TestStarts(ConsumerCase):
    def test_all_start_offsets_of_a_topic_without_commits_are_committed_immediately(self):
        """With two requests, another member could see a partial commit and treat its own partitions as added later."""
        self.transport.stored = {}
        self.script(assign(A))
        consumer = self.consumer(start="latest")
        consumer.poll(timeout=0)
        self.assertEqual([{A: 50, B: 50}], self.commits())
        self.assertEqual(50, consumer.position(A))

    def test_a_partition_without_an_offset_in_a_topic_with_commits_starts_at_its_beginning(self):
        self.transport.stored = {A: 40}
        self.script(assign(A, B))
        consumer = self.consumer(start="latest")
        consumer.poll(timeout=0)
        self.assertEqual((40, 3), (consumer.position(A), consumer.position(B)))
        self.assertEqual(3, self.transport.stored[B])

    def test_the_case_of_the_option_start_does_not_matter(self):
        for start in ("Earliest", "EARLIEST"):
            self.transport.stored = {}
            consumer = self.consumer(start=start, partitions=[B])
            consumer.poll(timeout=0)
            self.assertEqual((3, 3), (consumer.position(B), self.transport.stored[B]))

    def commits(self):
        return [what for call, what in self.transport.calls if call == "commit"]

    def test_a_member_without_partition_0_waits_until_its_owner_has_committed_the_start_offsets_of_the_topic(self):
        self.transport.stored = {}
        self.script(assign(B))
        consumer = self.consumer(start="latest")
        self.assertEqual((), consumer.poll(timeout=0).errors)
        self.assertEqual((None, {B}, []), (consumer.position(B), self.transport.paused, self.commits()))
        self.transport.stored = {A: 40, B: 45}
        self.clock.advance(RETRY_SECONDS)
        consumer.poll(timeout=0)
        self.assertEqual((45, set(), []), (consumer.position(B), self.transport.paused, self.commits()))

    def test_a_member_waits_a_limited_time_for_the_owner_of_partition_0_and_then_commits_only_its_start_offset(
        self,
    ):
        self.transport.stored = {}
        self.script(assign(B))
        consumer = self.consumer(start="latest")
        consumer.poll(timeout=0)
        self.clock.advance(FIRST_OWNER_SECONDS - 0.1)
        consumer.poll(timeout=0)
        self.assertEqual([], self.commits())
        self.clock.advance(RETRY_SECONDS)
        consumer.poll(timeout=0)
        self.assertEqual((50, [{B: 50}]), (consumer.position(B), self.commits()))

    def test_chosen_partitions_wait_for_no_other_member(self):
        self.transport.stored = {}
        consumer = self.consumer(start="latest", partitions=[B])
        consumer.poll(timeout=0)
        self.assertEqual((50, [{B: 50}]), (consumer.position(B), self.commits()))

    def test_an_owner_of_partition_0_that_joins_after_the_limit_uses_the_option_start_for_its_partitions(self):
        other = TopicPartition("metrics", 2)
        self.transport.partition_count = lambda *_: 4
        self.transport.stored = {B: 45}
        self.script(assign(A, other))
        consumer = self.consumer(start="latest")
        consumer.poll(timeout=0)
        self.assertEqual((50, [{A: 50, other: 50}]), (consumer.position(other), self.commits()))

    def test_a_reader_of_chosen_partitions_commits_only_their_start_offsets(self):
        other = TopicPartition("metrics", 2)
        self.transport.partition_count = lambda *_: 4
        for stored in ({}, {B: 45}):
            self.transport.stored, self.transport.calls = dict(stored), []
            consumer = self.consumer(start="latest", partitions=[A, other])
            consumer.poll(timeout=0)
            self.assertEqual((50, [{A: 50, other: 50}]), (consumer.position(A), self.commits()))

    def test_a_reader_of_chosen_partitions_uses_the_option_start_even_if_partition_0_is_committed(self):
        self.transport.stored = {A: 40}
        consumer = self.consumer(start="latest", partitions=[B])
        consumer.poll(timeout=0)
        self.assertEqual((50, [{B: 50}]), (consumer.position(B), self.commits()))

    def test_a_member_that_has_waited_once_waits_for_the_whole_limit_again(self):
        self.transport.stored = {}
        self.script(assign(B))
        consumer = self.consumer(start="latest")
        consumer.poll(timeout=0)
        self.transport.stored = {A: 40, B: 45}
        self.clock.advance(RETRY_SECONDS)
        consumer.poll(timeout=0)
        self.transport.stored = {}
        self.clock.advance(FIRST_OWNER_SECONDS)
        self.script(assign(B))
        consumer.poll(timeout=0)
        self.assertEqual([], self.commits())

    def test_an_error_in_one_topic_delays_no_other_topic(self):
        other = TopicPartition("other", 0)
        self.transport.stored, error = {}, RetriableError("no leader", name="_TIMED_OUT")

        def partition_count(topic, _timeout):
            if topic == "metrics":
                raise error
            return 1

        self.transport.partition_count = partition_count
        self.script(assign(A, other))
        consumer = self.consumer(start="latest", topics=("metrics", "other"))
        self.assertEqual((error,), consumer.poll(timeout=0).errors)
        self.assertEqual((50, None), (consumer.position(other), consumer.position(A)))
        self.assertEqual({A}, self.transport.paused)

    def test_start_offsets_wait_while_the_broker_does_not_know_an_assigned_partition(self):
        self.transport.stored, self.transport.partition_count = {}, lambda *_: 1
        self.script(assign(A, B))
        consumer = self.consumer(start="latest")
        [error] = consumer.poll(timeout=0).errors
        self.assertIsInstance(error, RetriableError)
        self.assertEqual(([], {A, B}), (self.commits(), self.transport.paused))
        self.transport.partition_count = lambda *_: 2
        self.clock.advance(RETRY_SECONDS)
        consumer.poll(timeout=0)
        self.assertEqual((50, [{A: 50, B: 50}]), (consumer.position(B), self.commits()))

    def test_the_option_start_may_be_a_time(self):
        self.transport.stored = {}
        self.script(assign(A, B))
        consumer = self.consumer(start="2026-01-31T12:00:00Z")
        consumer.poll(timeout=0)
        self.assertEqual({A: 20, B: 20}, self.transport.stored)

    def test_a_partition_with_an_unknown_start_offset_is_paused_reported_and_requested_again(self):
        self.transport.failing = RetriableError("the coordinator is unavailable", name="_TIMED_OUT")
        self.script(assign(A), lambda _: [message(A, 0)])
        consumer = self.consumer()
        batch = consumer.poll(timeout=0)
        self.assertEqual((self.transport.failing,), batch.errors)
        # For a logical offset, librdkafka sends a request whose late response replaces the position.
        self.assertEqual(({A}, {A: 0}), (self.transport.paused, self.transport.given))
        self.assertEqual(0, len(consumer.poll(timeout=0)))
        self.transport.failing = None
        self.clock.advance(RETRY_SECONDS)
        consumer.poll(timeout=0)
        self.assertEqual((0, set()), (consumer.position(A), self.transport.paused))

    def test_requests_for_an_unknown_start_offset_take_a_small_share_of_the_time_of_other_partitions(self):
        class Database(RebalanceListener):
            def assigned(self, partitions):
                return {A: 0} if A in partitions else {}

        requests = []

        def committed(partitions, timeout):
            requests.append(self.clock.monotonic())
            self.clock.advance(timeout)
            raise RetriableError("no coordinator", name="_TIMED_OUT")

        self.transport.committed = committed
        self.script(assign(A, B))
        consumer = self.consumer(listener=Database())
        while self.clock.monotonic() < 100:
            consumer.poll(timeout=0)
            self.clock.advance(RETRY_SECONDS)
        self.assertEqual([0, 25, 50, 75], requests)

    def test_the_error_of_an_unknown_start_offset_is_released_without_a_collection(self):
        def committed(*_):
            raise RetriableError("the coordinator is unavailable", name="_TIMED_OUT")

        self.transport.committed = committed
        self.script(assign(A))
        consumer = self.consumer()
        self.addCleanup(gc.enable)
        gc.disable()
        [error] = consumer.poll(timeout=0).errors
        reference = weakref.ref(error)
        del error
        self.assertIsNone(reference())

    # Rule 18
    def test_a_listener_without_a_start_is_called_again_instead_of_guessing(self):
        class Database(RebalanceListener):
            away = True

            def assigned(self, partitions):
                if self.away:
                    raise OSError("no route to the database")
                return {A: 30}

        self.script(assign(A))
        listener = Database()
        consumer = self.consumer(listener=listener)
        batch = consumer.poll(timeout=0)
        self.assertIn("OSError in assigned", str(batch.errors[0]))
        self.assertIsInstance(batch.errors[0], MessagingError)
        self.assertIsNone(consumer.position(A))
        listener.away = False
        self.clock.advance(RETRY_SECONDS)
        consumer.poll(timeout=0)
        self.assertEqual((30, 1), (consumer.position(A), consumer.health().listener_failures))

    def test_offsets_of_the_group_are_not_requested_if_start_offsets_are_given(self):
        self.transport.failing = RetriableError("no coordinator")
        self.script(assign(A, B))
        consumer = self.consumer(listener=GivenStarts({A: 30, B: 0}))
        self.assertEqual((), consumer.poll(timeout=0).errors)
        self.assertEqual((30, 0), (consumer.position(A), consumer.position(B)))


class TestNoOffsets(ConsumerCase):
    """The client interprets negative numbers as special positions: -1 is the end, which skips all earlier messages."""

    NO_OFFSETS: ClassVar[tuple[Any, ...]] = (-1, -1001, "5", 5.0, None, 2**63)

    def test_a_listener_that_returns_an_invalid_offset_is_called_again(self):
        answers = [*({A: offset} for offset in self.NO_OFFSETS), {A: 30}]

        class Database(RebalanceListener):
            def assigned(self, partitions):
                return answers.pop(0)

        self.script(assign(A))
        consumer = self.consumer(listener=Database())
        for offset in self.NO_OFFSETS:
            [error] = consumer.poll(timeout=0).errors
            self.assertIn(f"{offset!r} is not an offset of metrics/0", str(error))
            self.assertIsNone(consumer.position(A))
            self.clock.advance(REPEAT_SECONDS)
        consumer.poll(timeout=0)
        self.assertEqual(30, consumer.position(A))

    # Rule 12
    def test_invalid_offsets_are_neither_committed_nor_sought(self):
        self.script(assign(A, B))
        consumer = self.consumer()
        consumer.poll(timeout=0)
        for offset in self.NO_OFFSETS:
            self.assertRaises(MisuseError, consumer.commit, {A: offset, B: 7})
            self.assertRaises(MisuseError, consumer.next_offsets, {A: offset, B: 7})
            self.assertRaises(MisuseError, consumer.seek, A, offset)
        self.assertNotIn(("commit", {B: 7}), self.transport.calls)

    def test_no_negative_number_is_a_time_to_seek_to(self):
        self.script(assign(A))
        consumer = self.consumer()
        consumer.poll(timeout=0)
        for time_ms in (-1, -2, "5", 5.0, None, 2**63):
            self.assertRaises(MisuseError, consumer.seek_to_time, {A: time_ms})

    def test_a_poll_for_fewer_than_one_message_is_misuse_and_loses_no_message(self):
        self.script(assign(A), lambda _: [message(A, 0)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        for count in (0, -1, 1_000_001, 1.0, "5", None):
            self.assertRaises(MisuseError, consumer.poll, count, 0)
        self.assertEqual(1, len(consumer.poll(1, timeout=0)))

    def test_a_timeout_that_is_not_a_number_is_misuse_and_loses_no_message(self):
        self.script(assign(A), lambda _: [message(A, 0)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        for timeout in ("1", None, float("nan")):
            self.assertRaises(MisuseError, consumer.poll, timeout=timeout)
        for call in (consumer.partition_count, consumer.commit):
            self.assertRaises(MisuseError, call, {A: 1}, timeout="1")
        self.assertEqual(1, len(consumer.poll(1, timeout=0)))

    def test_an_invalid_partition_or_offset_is_misuse_that_names_it(self):
        consumer = self.consumer()
        for given in ("x", 5, None, {"metrics": 1}, [A], {("metrics", "0"): 1}, {("metrics",): 1}):
            with self.assertRaisesRegex(MisuseError, "TopicPartition"):
                consumer.commit(given)
        for call in (consumer.pause, consumer.resume, consumer.seek_to_beginning, consumer.resolve_starts):
            with self.assertRaisesRegex(MisuseError, "not 'metrics'"):
                call(["metrics"])
        with self.assertRaisesRegex(MisuseError, "not 'metrics'"):
            consumer.position("metrics")


class TestGoingBack(ConsumerCase):
    def test_without_a_commit_reading_resumes_at_the_start_of_the_assignment(self):
        class Database(RebalanceListener):
            def assigned(self, partitions):
                return {A: 30}

        self.transport.stored = {B: 4}
        self.script(assign(A, B), lambda _: [message(A, 30), message(B, 4), message(B, 5)])
        consumer = self.consumer(listener=Database())
        consumer.poll(timeout=0)
        consumer.poll(timeout=0)
        self.assertEqual({A: 30, B: 4}, consumer.seek_to_committed())

    def test_a_partition_revoked_during_its_commit_is_omitted(self):
        self.script(assign(A, B))
        consumer = self.consumer()
        consumer.poll(timeout=0)
        committed = self.transport.committed

        def taken_meanwhile(partitions, timeout):
            self.transport.callbacks.on_lost([B])
            return committed(partitions, timeout)

        self.transport.committed = taken_meanwhile
        self.assertEqual({A: 0}, consumer.seek_to_committed())


class TestErrors(ConsumerCase):
    def setUp(self):
        super().setUp()
        self.denied = AuthorizationError("not for you", code=29, name="TOPIC_AUTHORIZATION_FAILED")

    # Rule 16
    def test_errors_among_messages_are_reported_and_the_messages_are_kept(self):
        self.script(assign(A), lambda _: [message(A, 0), failure(B, self.denied), message(A, 1)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        batch = consumer.poll(timeout=0)
        self.assertEqual(((self.denied,), [0, 1]), (batch.errors, batch.partitions[0].offsets))

    def test_the_same_error_is_reported_once_a_second(self):
        self.script(*[lambda _: [failure(A, self.denied)]] * 4)
        consumer = self.consumer()
        reported = []
        for _ in range(4):
            reported.append(len(consumer.poll(timeout=0).errors))
            self.clock.advance(0.5)
        self.assertEqual([1, 0, 1, 0], reported)

    def test_an_error_of_the_client_is_in_the_next_batch_unless_it_is_temporary(self):
        consumer = self.consumer()
        consumer.poll(timeout=0)
        self.transport.on_error(RetriableError("a broker is down", name="_TRANSPORT"))
        self.assertEqual((), consumer.poll(timeout=0).errors)
        refused = AuthenticationError("bad password", name="_AUTHENTICATION")
        self.transport.on_error(refused)
        self.assertEqual((refused,), consumer.poll(timeout=0).errors)
        self.assertIs(refused, consumer.health().last_client_error)

    def test_a_partition_that_the_client_started_without_an_offset_is_restarted(self):
        no_offset = TransportError("No offset stored", code=-140, name="_AUTO_OFFSET_RESET")
        self.script(assign(A), lambda _: [failure(A, no_offset)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        self.transport.given.clear()
        self.assertEqual((), consumer.poll(timeout=0).errors)
        consumer.poll(timeout=0)
        self.assertEqual({A: 0}, self.transport.given)

    # Rule 18
    def test_a_log_that_lost_its_end_is_reported_and_not_read_again_from_the_start(self):
        lost = TransportError("Partition log truncation detected", code=-140, name="_AUTO_OFFSET_RESET")
        self.script(assign(A), lambda _: [message(A, 0), message(A, 1)], lambda _: [failure(A, lost)])
        consumer = self.consumer(listener=GivenStarts({A: 0}))
        for _ in range(2):
            consumer.poll(timeout=0)
        self.transport.given.clear()
        (error,) = consumer.poll(timeout=0).errors
        self.assertIsInstance(error, OffsetOutOfRange)
        self.assertEqual((A, 2), (error.partition, error.offset))
        self.assertIn("(Partition log truncation detected)", str(error))
        consumer.poll(timeout=0)
        self.assertEqual({}, self.transport.given)

    def test_an_offset_out_of_range_from_before_the_start_of_a_partition_is_ignored(self):
        gone = TransportError("out of range", code=-140, name="_AUTO_OFFSET_RESET")
        early = failure(A, gone, 0)
        self.transport.stored = {}
        self.transport.failing = RetriableError("the coordinator is unavailable", name="_TIMED_OUT")
        self.script(assign(A), *[lambda _: [early]] * 2, lambda _: [failure(A, gone, 40)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        self.assertEqual((), consumer.poll(timeout=0).errors)
        self.transport.failing, self.transport.stored = None, {A: 40}
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual((), consumer.poll(timeout=0).errors)
        self.assertEqual([40], [error.offset for error in consumer.poll(timeout=0).errors])

    def test_a_fatal_error_of_the_client_is_reported_and_then_raised(self):
        ended: TransportError = FatalError("fenced", code=-150, name="_FATAL")
        self.script(lambda _: [failure(A, ended)])
        consumer = self.consumer()
        self.assertEqual((ended,), consumer.poll(timeout=0).errors)
        self.assertRaises(FatalError, consumer.poll, timeout=0)

    def test_an_error_that_every_poll_raises_does_not_grow(self):
        ended: TransportError = FatalError("fenced", code=-150, name="_FATAL")
        self.script(lambda _: [failure(A, ended)])
        consumer = self.consumer()
        consumer.poll(timeout=0)
        lengths = set()
        for _ in range(3):
            with contextlib.suppress(FatalError):
                consumer.poll(timeout=0)
            lengths.add(len(traceback.extract_tb(ended.__traceback__)))
        self.assertEqual(1, len(lengths))


class TestClosing(ConsumerCase):
    def test_the_listener_commits_before_the_client_is_closed(self):
        class Finisher(RebalanceListener):
            def revoked(self, partitions, deadline):
                consumer.commit(dict.fromkeys(partitions, 9))

        self.script(assign(A))
        consumer = self.consumer(listener=Finisher())
        consumer.poll(timeout=0)
        consumer.close()
        self.assertEqual([("commit", {A: 9}), ("close", None)], self.transport.calls[-2:])

    def test_health_includes_the_time_since_the_last_poll(self):
        consumer = self.consumer()
        self.assertIsNone(consumer.health().seconds_since_poll)
        consumer.poll(timeout=0)
        self.clock.advance(7)
        self.assertEqual(7, consumer.health().seconds_since_poll)
