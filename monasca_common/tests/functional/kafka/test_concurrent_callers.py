# SPDX-License-Identifier: Apache-2.0
"""Threads that publish with one producer: linger does not delay them, and they share requests."""

from concurrent.futures import ThreadPoolExecutor

from monasca_common.tests.functional.kafka.producer_case import SECONDS, ProducerCase
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

CALLERS = 8
BULKS = 20
LONG_MS = 300_000  # longer than a publish waits


class TestConcurrentCallers(ProducerCase):
    def requests_for(self, bulks):
        """Publish ``bulks`` messages on each thread; return the number of produce requests."""
        topic = self.fixture.topic()
        producer = self.producer(linger_ms=LONG_MS)
        producer.publish(topic, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        counted = self.fixture.proxy.add(Fault.delay_request(ApiKey.PRODUCE, seconds=0.0))

        def publish(thread):
            return [producer.publish(topic, [b"%d" % thread], timeout=SECONDS).ok for _ in range(bulks)]

        with ThreadPoolExecutor(CALLERS) as threads:
            outcomes = [ok for each in threads.map(publish, range(CALLERS)) for ok in each]
        self.assertEqual([True] * CALLERS * bulks, outcomes)
        self.assertEqual(CALLERS * bulks + 1, len(self.log(topic)))
        return counted.taken

    # Rule 7
    def test_linger_delays_no_caller(self):
        self.requests_for(bulks=1)

    @periodic("a measurement of batching")
    def test_callers_that_return_together_share_requests(self):
        self.assertLess(self.requests_for(BULKS), CALLERS * BULKS / 2)
