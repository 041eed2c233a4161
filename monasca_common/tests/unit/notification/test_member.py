# SPDX-License-Identifier: Apache-2.0
"""The threads of a member while the database is unavailable."""

from oslotest import base

from monasca_common.kafka import RegistryUnavailable, RetryLater
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.notification.member import PausedHandler
from monasca_common.runtime.member_health import MemberHealth, MemberState, MemberStatus

TP = TopicPartition("transitions", 0)
MESSAGE = Message(*TP, 7, None, None, b"m", ())


class Stopping:
    """An event whose waits only advance the clock. ``waits``: the time-outs."""

    def __init__(self, clock):
        self._clock = clock
        self.waits = []

    def wait(self, seconds):
        self.waits.append(seconds)
        self._clock.advance(seconds)


class PausedHandlerTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.stopping = Stopping(self.clock)
        self.outcomes = []
        self.health = MemberHealth(MemberStatus("transitions"), self.clock)
        self.health.begin()
        self.health.starts_at({TP: MESSAGE.offset})
        self.handler = PausedHandler(self.handle, self.clock, self.stopping, self.health)

    def handle(self, message):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome

    def call(self, *outcomes):
        self.outcomes += outcomes
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self.assertRaises(type(outcome), self.handler, MESSAGE)
            else:
                self.handler(MESSAGE)

    def test_waits_increase_while_the_database_is_unavailable(self):
        self.call(*(RetryLater() for _ in range(12)))
        self.assertEqual(11, len(self.stopping.waits))
        self.assertGreater(self.stopping.waits[-1], self.stopping.waits[0])
        self.assertLessEqual(max(self.stopping.waits), 3.0)
        self.assertIs(MemberState.WAITING_FOR_DATABASE, self.health.report(None).state)

    def test_after_a_success_calls_do_not_wait(self):
        self.call(RetryLater(), "done", "done")
        self.assertEqual(1, len(self.stopping.waits))
        self.assertIs(MemberState.RUNNING, self.health.report(None).state)

    def test_while_the_schema_registry_is_unavailable_other_messages_are_handled(self):
        self.call(RegistryUnavailable("x", 1.0), "done")
        self.assertEqual([], self.stopping.waits)
        self.assertIs(MemberState.RUNNING, self.health.report(None).state)

    def test_a_handler_that_fails_after_a_revoke_does_not_report_a_wait(self):
        self.health.after_revoke([TP])
        self.call(RetryLater())
        self.assertIs(MemberState.RUNNING, self.health.report(None).state)
