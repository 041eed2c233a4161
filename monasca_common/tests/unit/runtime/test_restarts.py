# SPDX-License-Identifier: Apache-2.0
"""Restarts of loops after failures: their waits, and the errors that end them."""

import gc
import weakref

import fixtures
from oslotest import base

from monasca_common.kafka import DeadLetterLimit, FencedError, TransportError
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.runtime.restarts import HEALTHY_SECONDS, RESTARTS, Loop


class Stopping:
    """An event that is set after ``waits`` waits; records the time-out of each."""

    def __init__(self, waits):
        self._most = waits
        self.waits = []

    def is_set(self):
        return len(self.waits) >= self._most

    def wait(self, seconds):
        self.waits.append(seconds)
        return self.is_set()


class FailingLoop(Loop):
    """Fails after working for each number of seconds in ``lives``."""

    expected = (TransportError,)

    def __init__(self, clock, lives, error):
        super().__init__("a topic", clock)
        self.stopping = Stopping(len(lives))
        self.events = []
        self._lives = list(lives)
        self._error = error

    def serve(self):
        self.events.append(f"attempt {self.restarts}")
        self.clock.advance(self._lives.pop(0))
        raise self._error("no broker")

    def failed(self, error):
        self.events.append(str(error))


class Client:
    error: Exception | None = None


class ClientLoop(FailingLoop):
    """Opens a client that keeps the error whose traceback refers to it; counts the open clients during each wait."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.clients = []
        self.open_during = []
        self._wait, self.stopping.wait = self.stopping.wait, self.wait

    def wait(self, seconds):
        self.open_during.append(sum(reference() is not None for reference in self.clients))
        return self._wait(seconds)

    def serve(self):
        client = Client()
        self.clients.append(weakref.ref(client))
        try:
            super().serve()
        except TransportError as error:
            client.error = error
            raise


class RestartsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()

    def run_it(self, *lives, error=TransportError):
        """Return the waits after failures that follow these seconds of work."""
        self.loop = FailingLoop(self.clock, lives, error)
        self.loop.run()
        return self.loop.stopping.waits

    def test_each_consecutive_failure_waits_longer(self):
        waits = self.run_it(0, 0, 0)
        self.assertEqual([RESTARTS.delay(number, 0.0) for number in (1, 2, 3)], waits)
        self.assertEqual(sorted(set(waits)), waits)

    def test_the_back_off_restarts_after_a_healthy_minute(self):
        waits = self.run_it(0, 0, HEALTHY_SECONDS + 1)
        self.assertEqual(waits[0], waits[2])

    def test_a_failure_is_reported_before_the_back_off_and_a_restart_is_counted_after_it_unless_stopped(self):
        self.run_it(0, 0)
        self.assertEqual(["attempt 0", "no broker", "attempt 1", "no broker"], self.loop.events)
        self.assertEqual(1, self.loop.restarts)

    def test_the_clients_of_a_failed_attempt_are_released_before_the_back_off(self):
        self.addCleanup(gc.enable)
        gc.disable()
        for error in (TransportError, DeadLetterLimit):
            loop = ClientLoop(self.clock, [0, 0, 0], error)
            loop.run()
            self.assertEqual([0, 0, 0], loop.open_during)

    def test_a_limit_of_dead_letters_waits_for_the_stop(self):
        self.assertEqual([None], self.run_it(0, error=DeadLetterLimit))

    def test_an_explained_error_that_is_raised_ends_the_loop(self):
        def explained(_loop, error):
            raise error

        self.useFixture(fixtures.MonkeyPatch(f"{FailingLoop.__module__}.FailingLoop.explained", explained))
        self.assertRaises(FencedError, self.run_it, 0, 0, error=FencedError)
        self.assertEqual(["attempt 0"], self.loop.events)
