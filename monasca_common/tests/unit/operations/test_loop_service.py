# SPDX-License-Identifier: Apache-2.0
"""A service of one loop: its signals and its messages."""

import fixtures
from oslotest import base
from prometheus_client import CollectorRegistry

from monasca_common.kafka import FencedError
from monasca_common.operations import loop_service
from monasca_common.runtime.health import ServiceHealth
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.settings import StatusSettings


class CountingLoop(Loop):
    turns = 0
    error = None

    def serve(self):
        self.turns += 1
        if self.error is not None:
            raise self.error
        self.stop_by_signal()

    def explained(self, error):
        raise error


class LoopServiceTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.loop = CountingLoop("a loop")
        self.log = self.useFixture(fixtures.FakeLogger(loop_service.__name__))
        self.useFixture(fixtures.MonkeyPatch(f"{loop_service.__name__}.stop_on_signals", self.on_signals))

    def on_signals(self, stop):
        self.assertEqual("", self.log.output)
        self.loop.stop_by_signal = stop

    def run_it(self):
        health, facts = ServiceHealth("s", dict, list), {"reads": "a, b"}
        loop_service.run_service("s", self.loop, "s", StatusSettings(), health, CollectorRegistry(), facts=facts)

    def test_a_signal_stops_the_loop_and_both_messages_are_logged(self):
        self.run_it()
        self.assertEqual(1, self.loop.turns)
        self.assertRegex(self.log.output, r"^s \S+ started: reads a, b\ns \S+ stopped\n$")

    def test_an_error_that_ends_the_loop_is_raised(self):
        self.loop.error = FencedError("another process")
        self.assertIs(self.loop.error, self.assertRaises(FencedError, self.run_it))
