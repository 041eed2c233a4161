# SPDX-License-Identifier: Apache-2.0
"""Many callers of one producer: sent at once, or gathered into fewer requests."""

import threading
import time

from monasca_common.devbroker import ApiKey, Fault
from monasca_common.tests.functional.kafka.producer_case import SECONDS, ProducerCase
from monasca_common.tests.periodic import periodic

CALLERS = 12
LINGER_MS = 1000  # the longest that there is
LONG_MS = 300_000  # longer than a publish waits


class TestEagerCallers(ProducerCase):
    def published(self, callers=CALLERS, linger_ms=LONG_MS, **settings):
        """How many produce requests a message of each of so many callers took; each is delivered in time."""
        topic = self.fixture.topic()
        producer = self.producer(linger_ms=linger_ms, **settings)
        producer.publish(topic, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        counted = self.fixture.proxy.add(Fault.delay_request(ApiKey.PRODUCE, seconds=0.0))
        reports = []

        def publish(number):
            time.sleep(number * 0.01)  # they come one after the other, as requests do
            reports.append(producer.publish(topic, [b"%d" % number], timeout=SECONDS))

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        self.assertEqual([True] * callers, [report.ok for report in reports])
        self.assertEqual(callers + 1, len(self.log(topic)))
        return counted.taken

    @periodic("a measurement of batching; the default is in the gate")
    def test_more_than_so_many_share_requests(self):
        self.assertLess(self.published(linger_ms=LINGER_MS, eager_callers=0), CALLERS)

    @periodic("a measurement of batching; the default is in the gate")
    def test_so_many_do_not_wait_for_others(self):
        self.published(callers=2, eager_callers=2)

    # Rule 7
    def test_unless_told_otherwise_nobody_waits(self):
        self.published()
