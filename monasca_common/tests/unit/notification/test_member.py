# SPDX-License-Identifier: Apache-2.0
"""What a member's threads do while the database is unavailable, and what probes learn of a member."""

from types import SimpleNamespace
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.kafka import MessagingError, RetryLater
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.notification import member
from monasca_common.notification.member import NotificationMember, PausedHandler, service_health
from monasca_common.runtime.health import LoopHealth
from monasca_common.storage.errors import StorageUnavailable


class Stopping:
    """``waits``: those that were waited, which takes no time here but on the clock."""

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
        self.handler = PausedHandler(self.handle, self.clock, self.stopping)

    def handle(self, message):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return [message]

    def call(self, *outcomes):
        self.outcomes += outcomes
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self.assertRaises(type(outcome), self.handler, "m")
            else:
                self.assertEqual(["m"], self.handler("m"))

    def test_while_the_database_is_unavailable_each_call_waits_and_the_waits_grow(self):
        self.call(*(RetryLater() for _ in range(12)))
        self.assertEqual(11, len(self.stopping.waits))
        self.assertGreater(self.stopping.waits[-1], self.stopping.waits[0])
        self.assertLessEqual(max(self.stopping.waits), 3.0)

    def test_after_a_success_nothing_waits(self):
        self.call(RetryLater(), "done", "done")
        self.assertEqual(1, len(self.stopping.waits))

    def test_what_is_not_due_yet_pauses_no_other(self):
        self.call(RetryLater(after=5.0), "done")
        self.assertEqual([], self.stopping.waits)


class ReadinessTest(base.BaseTestCase):
    """A member whose processor has just begun, and stands still while the test looks."""

    PARTITION = TopicPartition("alarm-state-transitions", 0)

    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.lag = {self.PARTITION: 5}
        self.seconds_since_poll = 0.0
        consumer = mock.Mock(lag=lambda _: self.lag)
        consumer.health = lambda: SimpleNamespace(seconds_since_poll=self.seconds_since_poll)
        self.consumer = consumer
        stream = mock.Mock(audit=None, consumer=SimpleNamespace(topics=("alarm-state-transitions",), group_id="g"))
        self.member = NotificationMember(stream, lambda _: (), 1, self.clock)
        self.health = service_health([self.member.health])
        for name, stand_in in (("open_producer", mock.Mock()), ("open_consumer", lambda _: consumer)):
            self.useFixture(fixtures.MonkeyPatch(f"monasca_common.runtime.member.{name}", stand_in))

    def while_it_runs(self, look):
        """``look`` gets the hook that the processor tells of commits."""

        def processor(*_, hooks, **__):
            return mock.Mock(run=lambda: look(*hooks), consumer=self.consumer)

        self.useFixture(fixtures.MonkeyPatch(f"{member.__name__}.Processor", processor))
        self.member.serve()

    def reasons(self):
        is_ready, body = self.health.ready()
        self.assertEqual(is_ready, not body["reasons"])
        return body["reasons"]

    def test_messages_that_wait_while_none_is_done_are_a_stall(self):
        def look(hook):
            self.clock.advance(59.0)
            self.assertEqual([], self.reasons())
            self.clock.advance(2.0)
            self.assertEqual(["alarm-state-transitions: STALL: nothing is done for 61 s"], self.reasons())
            hook.after_commit({self.PARTITION: MessagingError("refused")})
            self.assertEqual(1, len(self.reasons()))
            hook.after_commit({self.PARTITION: None})
            self.assertEqual([], self.reasons())

        self.while_it_runs(look)

    def test_where_nothing_waits_nothing_stalls(self):
        def look(_hook):
            self.lag = {self.PARTITION: 0}
            self.clock.advance(1000.0)
            self.assertEqual([], self.reasons())
            self.lag = {self.PARTITION: 1}  # it came this moment
            self.assertEqual([], self.reasons())

        self.while_it_runs(look)

    def test_without_partitions_it_is_not_ready_until_others_must_have_them_all(self):
        def look(_hook):
            self.lag = {}
            self.assertEqual(["alarm-state-transitions: it has no partitions yet"], self.reasons())
            self.clock.advance(61.0)
            self.assertEqual([], self.reasons())

        self.while_it_runs(look)

    def test_a_batch_that_hangs_is_a_loop_that_does_not_turn(self):
        def look(_hook):
            for self.seconds_since_poll, live in ((600.0, True), (601.0, False)):
                self.assertEqual(live, self.health.live()[0])

        self.while_it_runs(look)
        self.assertTrue(self.health.live()[0])  # it has no loop now, and waits for its next start
        self.assertEqual(["alarm-state-transitions: it has not begun"], self.reasons())


class LoopsTest(base.BaseTestCase):
    def test_one_loop_that_does_not_turn_or_work_is_enough(self):
        clock = VirtualClock()
        loops = [LoopHealth(name, clock) for name in ("deferred", "retention")]
        health = service_health(loops)
        for loop in loops:
            loop.works()
        self.assertEqual([True] * 3, [look()[0] for look in (health.health, health.live, health.ready)])

        loops[1].failed(StorageUnavailable("it is away"))
        clock.advance(601.0)
        loops[0].turned()

        self.assertEqual((False, ["retention: it is away"]), (health.ready()[0], health.ready()[1]["reasons"]))
        self.assertEqual({"state": "waiting", "reason": "it is away"}, health.health()[1]["members"]["retention"])
        self.assertEqual(
            (False, {"deferred": 0.0, "retention": 601.0}), (health.live()[0], health.live()[1]["seconds_since_turn"])
        )
