# SPDX-License-Identifier: Apache-2.0
"""Calls of a client that return, return late, or never return."""

import threading
import weakref
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.kafka.errors import ClosedError, FatalError, RetriableError
from monasca_common.kafka.transport.client_thread import GRACE_SECONDS, ClientThread
from monasca_common.tests.unit.kafka.leaping_clock import LeapingClock
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting


class Client:
    """A native client that stores the thread on which it was destroyed."""

    def __init__(self, destroyed):
        self._destroyed = destroyed

    def __del__(self):
        self._destroyed.append(threading.current_thread().name)


class ClientThreadTest(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka"))
        self.clock = LeapingClock()
        self.thread = ClientThread("test-calls", self.clock, remedy="open another")
        self.entered, self.returned = threading.Event(), threading.Event()
        self.clock.hung = self.entered.is_set
        self.addCleanup(self.returned.set)

    def hang(self, _client=None):
        self.entered.set()
        self.returned.wait(PATIENCE_SECONDS)
        return "late"

    def test_a_caller_receives_the_result_or_the_exception_of_its_call(self):
        self.assertEqual(5.0, self.thread.call("commit", lambda left: left, 5.0))
        self.assertRaises(ZeroDivisionError, self.thread.call, "commit", lambda _: 1 / 0, 5.0)

    def test_all_calls_are_on_one_thread(self):
        names = {self.thread.call("commit", lambda _: threading.current_thread(), 5.0) for _ in range(10)}
        self.assertEqual(1, len(names))
        self.assertEqual({True}, {thread.daemon for thread in names})

    def test_a_call_starts_the_thread_if_an_earlier_call_could_not(self):
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            self.assertRaises(RuntimeError, self.thread.call, "commit", lambda left: left, 5.0)
            self.thread.finish(lambda: None, 0.0)
        self.assertEqual(5.0, self.thread.call("commit", lambda left: left, 5.0))

    def test_a_call_within_a_call_does_not_wait_for_itself(self):
        self.assertEqual("inner", self.thread.call("outer", lambda _: self.thread.call("i", lambda _: "inner", 1), 5.0))

    # Rule 20
    def test_a_call_that_hangs_is_left_at_its_deadline_and_poisons_the_client(self):
        error = self.assertRaises(FatalError, self.thread.call, "commit_transaction", self.hang, 60.0)
        self.assertEqual(60.0 + GRACE_SECONDS, self.clock.monotonic())
        self.assertIn("commit_transaction has not returned 5 s after its time-out of 60.0 s", str(error))
        self.assertIn("open another", str(error))
        self.assertIn(str(error), self.log.output)

    def test_a_poisoned_client_receives_no_further_calls(self):
        self.assertRaises(FatalError, self.thread.call, "commit", self.hang, 1.0)
        asked = []
        self.assertRaises(FatalError, self.thread.call, "abort", asked.append, 1.0)
        self.assertFalse(self.thread.finish(lambda: asked.append("close"), 1.0))
        self.assertFalse(self.thread.settle(1.0))
        self.returned.set()
        self.wait_until(lambda: "has returned" in self.log.output)
        self.assertEqual([], asked)

    def test_a_call_after_a_hanging_call_is_not_sent_and_can_be_retried(self):
        self.thread.submit("commit", self.hang, 300.0)
        sent = []
        error = self.assertRaises(RetriableError, self.thread.call, "committed", sent.append, 5.0)
        self.assertIn("committed was not sent within 5.0 s", str(error))
        self.returned.set()
        self.assertTrue(self.thread.settle(5.0) or self.thread.settle(5.0))
        self.assertEqual([], sent)

    def test_a_delayed_call_has_only_the_remaining_time(self):
        entered = threading.Event()

        def slow():
            entered.set()
            self.clock.advance(3.0)

        self.thread.submit("commit", slow, 300.0)
        entered.wait(PATIENCE_SECONDS)
        call = self.thread.submit("wait", lambda: None, 300.0)
        self.wait_until(lambda: call.look_again())
        self.assertEqual(5.0, self.thread.call("committed", lambda left: left, 5.0))

    # Rule 20
    def test_an_abandoned_client_is_destroyed_on_the_helper_thread_when_its_call_returns(self):
        destroyed = []
        client = Client(destroyed)
        alive = weakref.ref(client)
        held = [client]
        self.thread.on_poison = lambda: held.clear

        del client
        self.assertRaises(FatalError, self.thread.call, "commit", lambda _: self.hang(held[0]), 1.0)
        self.assertIsNotNone(alive())
        self.assertEqual([], destroyed)
        self.returned.set()
        self.wait_until(lambda: destroyed)
        self.assertEqual(["test-calls"], destroyed)

    def test_a_client_is_not_destroyed_during_a_poll(self):
        destroyed = []
        self.thread.on_poison = lambda: lambda: destroyed.append(True)
        with self.thread.watch("poll", 1.0):
            self.assertRaises(FatalError, self.thread.call, "commit", self.hang, 1.0)
            self.returned.set()
            self.wait_until(lambda: "has returned" in self.log.output)
            self.assertEqual([], destroyed)
        self.wait_until(lambda: destroyed)

    def test_a_late_response_is_ignored(self):
        call = self.thread.submit("commit", self.hang, 1.0)
        self.wait_until(lambda: call.begun_at is not None)
        self.clock.advance(100.0)
        self.thread.inspect()
        self.thread.inspect()
        self.assertIsInstance(self.thread.failure, FatalError)
        failure = self.thread.failure
        self.returned.set()
        self.wait_until(lambda: "has returned" in self.log.output)
        self.assertIsNone(call.result())
        self.assertIs(failure, self.thread.failure)

    def test_the_watchdog_finds_calls_without_a_waiting_caller(self):
        call = self.thread.submit("commit", self.hang, 300.0)
        self.wait_until(lambda: call.begun_at is not None)
        self.clock.advance(300.0)
        self.thread.inspect()
        self.thread.inspect()
        self.assertIsNone(self.thread.failure)
        self.clock.advance(GRACE_SECONDS + 1)
        self.wait_until(lambda: self.thread.inspect() or self.thread.failure)
        self.assertIn("commit has not returned", str(self.thread.failure))

    def test_a_hanging_poll_is_reported_once_with_its_age_and_again_when_it_returns(self):
        with self.thread.watch("poll", 1.0):
            self.clock.advance(20.0)
            self.thread.inspect()
            self.assertEqual("", self.log.output)
            self.clock.advance(20.0)
            self.assertEqual(40.0, self.thread.oldest_seconds())
            for _ in range(3):
                self.thread.inspect()
            self.assertEqual(1, self.log.output.count("test-calls: poll has not returned for 40 s"))
        self.assertIn("poll has returned after 40 s", self.log.output)
        self.assertEqual(0.0, self.thread.oldest_seconds())

    def test_the_age_of_a_call_is_reported_while_it_is_waited_for(self):
        call = self.thread.submit("commit", self.hang, 300.0)
        self.wait_until(lambda: call.begun_at is not None)
        self.clock.advance(7.0)
        self.assertEqual(7.0, self.thread.oldest_seconds())

    def test_the_client_is_released_last_and_receives_no_calls_afterwards(self):
        order = []
        self.thread.submit("commit", lambda: order.append("commit"), 5.0)
        self.wait_until(lambda: self.thread.finish(lambda: order.append("close"), 5.0) or order == ["commit", "close"])
        self.assertEqual(["commit", "close"], order)
        self.assertRaises(ClosedError, self.thread.call, "commit", order.append, 5.0)

    def test_a_close_after_a_hanging_call_waits_no_longer_than_its_time_out(self):
        self.thread.submit("commit", self.hang, 300.0)
        closed = []
        self.assertFalse(self.thread.finish(lambda: closed.append(True), 2.0))
        self.assertEqual(2.0, self.clock.monotonic())
        self.returned.set()
        self.wait_until(lambda: closed)
