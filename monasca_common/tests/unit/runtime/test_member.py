# SPDX-License-Identifier: Apache-2.0
"""A member with the broker in memory: handled messages, failures and restarts."""

import contextlib
import os
import threading
import weakref
from functools import partial

import fixtures
from oslotest import base

from monasca_common.kafka import Hook, Processor, RetryLater, RetryPolicy
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.runtime import restarts
from monasca_common.runtime.member import Member
from monasca_common.runtime.member_health import MemberState, MemberStatus
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

ORDERS = TopicPartition("orders", 0)


class Polls(Hook):
    def __init__(self):
        self.offsets = []

    def after_poll(self, batch):
        self.offsets += [offset for part in batch.partitions for offset in part.offsets]


class OrdersMember(Member):
    """Records the handled values, after raising one of ``refusals`` per call."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.values = []
        self.refusals = []
        self.failures = []
        self.attempts = []

    def open(self, attempt):
        self.attempts.append(attempt)
        consumer, producer, hooks = self.open_clients(attempt)
        return Processor(consumer, partial(self.handle, attempt), producer=producer, hooks=hooks, per_message=True)

    def handle(self, attempt, message):
        if self.refusals:
            error = self.refusals.pop(0)
            attempt.fail(error)
            attempt.fail(ValueError("a later one"))
            raise RetryLater from error
        self.values.append(message.value)

    def failed(self, error):
        super().failed(error)
        self.failures.append(error)


class FailingMember(Member):
    """Fails once; records whether the consumer of the previous attempt still exists when an attempt opens."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.remaining = []
        self._previous = lambda: None

    def open(self, attempt):
        self.remaining.append(self._previous() is not None)
        consumer, producer, hooks = self.open_clients(attempt)
        self._previous = weakref.ref(consumer)
        return Processor(consumer, partial(self.handle, attempt), producer=producer, hooks=hooks, per_message=True)

    def handle(self, attempt, _message):
        if len(self.remaining) == 1:
            attempt.fail(ValueError("of the handler"))
            raise RetryLater


class MemberTest(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("orders", 1)
        quickly = RetryPolicy(backoff_seconds=0.01, max_backoff_seconds=0.01)
        self.useFixture(fixtures.MonkeyPatch(f"{restarts.__name__}.RESTARTS", quickly))
        self.taps = []
        self.polls = Polls()

    @contextlib.contextmanager
    def tap(self, producer, positions):
        self.taps.append("opened")
        yield producer, self.polls
        self.taps.append("closed")

    def settings(self):
        consumer = self.kafka.consumer_settings("orders", "g", max_wait_time_seconds=0.01, stop_timeout_seconds=1.0)
        return MemberStatus("orders"), consumer, self.kafka.producer_settings()

    def start(self, *refusals, **options):
        member = OrdersMember(*self.settings(), **options)
        member.refusals += refusals
        self.run_member(member)

    def run_member(self, member):
        self.member = member
        self.thread = threading.Thread(target=self.member.run, daemon=True)
        self.thread.start()
        self.addCleanup(self.stop)

    def stop(self):
        self.member.stop()
        self.thread.join(PATIENCE_SECONDS)

    def publish(self, *values):
        records = [Record(value, partition=0) for value in values]
        self.kafka.producer().publish("orders", records).raise_for_undelivered()

    def test_a_member_handles_messages_and_commits_when_it_stops(self):
        self.publish(b"1", b"2")
        self.start()
        self.wait_until(lambda: len(self.member.values) == 2)
        self.wait_until(lambda: self.member.status().turned_ms)
        self.assertIs(MemberState.RUNNING, self.member.status().state)
        self.stop()

        self.assertEqual([b"1", b"2"], self.member.values)
        self.assertEqual(2, self.kafka.broker.committed("g")[ORDERS])
        status = self.member.status()
        self.assertEqual((MemberState.STOPPED, 0), (status.state, status.turned_ms))

    def test_the_first_failure_ends_the_attempt_and_the_next_one_handles_the_message_again(self):
        self.publish(b"1")
        first = ValueError("of the handler")
        self.start(first)
        self.wait_until(lambda: self.member.values)

        self.assertEqual([b"1"], self.member.values)
        self.assertEqual([first], self.member.failures)
        self.assertEqual(1, self.member.status().restarts)

    def test_a_member_has_the_id_of_its_process_and_continues_the_counts_of_the_replaced_member(self):
        _, *settings = self.settings()
        self.run_member(OrdersMember(MemberStatus("orders", pid=7, restarts=2, dead_letters=3), *settings))
        status = self.member.status()
        self.assertEqual((os.getpid(), 2, 3), (status.pid, status.restarts, status.dead_letters))

    def test_a_handler_of_an_earlier_attempt_does_not_end_the_current_one(self):
        self.publish(b"1")
        self.start(ValueError("of the handler"))
        self.wait_until(lambda: self.member.values)
        self.member.attempts[0].fail(ValueError("of an abandoned handler"))
        self.publish(b"2")
        self.wait_until(lambda: len(self.member.values) == 2)
        self.stop()

        self.assertEqual(["of the handler"], [str(error) for error in self.member.failures])
        self.assertEqual(2, len(self.member.attempts))

    def test_the_clients_of_a_failed_attempt_are_released_before_the_next_attempt(self):
        self.publish(b"1")
        self.run_member(FailingMember(*self.settings()))
        self.wait_until(lambda: len(self.member.remaining) == 2)
        self.assertEqual([False, False], self.member.remaining)

    def test_each_attempt_has_its_own_tap_that_outlives_its_clients(self):
        self.publish(b"1")
        self.start(ValueError("of the handler"), tap=self.tap)
        self.wait_until(lambda: self.member.values)
        self.stop()

        self.assertEqual(["opened", "closed"] * 2, self.taps)
        self.assertEqual([0, 0], self.polls.offsets)
