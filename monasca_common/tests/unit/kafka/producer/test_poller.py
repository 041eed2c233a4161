# SPDX-License-Identifier: Apache-2.0
import threading

from oslotest import base

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.producer.in_flight import Latch
from monasca_common.kafka.producer.ledger import Ledger
from monasca_common.kafka.producer.poller import Poller

SHORT_SECONDS = 0.01


class TakenAtOnce:
    """A lock that somebody else releases between the look and the release."""

    def locked(self):
        return True

    def release(self):
        raise RuntimeError("release unlocked lock")


class ProddingClock(SystemClock):
    """Whoever waits is woken at once, to serve in another's place."""

    def __init__(self):
        self.waits = []

    def wait(self, lock, timeout):
        self.waits.append(timeout)
        return True


class PollerTest(base.BaseTestCase):
    def test_a_waiter_that_two_wake_at_the_same_moment_is_woken(self):
        latch = Latch(1)
        latch._lock = TakenAtOnce()
        latch.count_down()
        self.assertTrue(latch.open)

    def test_who_is_to_serve_and_cannot_until_its_deadline_waits_no_longer(self):
        clock = ProddingClock()
        ledger = Ledger(clock, lambda error: error, budget_messages=10, budget_bytes=1000)
        poller = Poller(ledger, clock, lambda: ())
        self.addCleanup(poller.stop, 10)
        held, over = threading.Event(), threading.Event()

        def another():
            with ledger.serving:
                held.set()
                over.wait(50)

        thread = threading.Thread(target=another, daemon=True)
        thread.start()
        held.wait(50)
        self.assertFalse(poller.wait(Latch(1), SHORT_SECONDS))
        over.set()
        thread.join()
        self.assertEqual(1, len(clock.waits))
