# SPDX-License-Identifier: Apache-2.0
"""Ten times as many connections as the API serves concurrently: each request gets a response.

``MONASCA_STRESS_OVERLOAD_SECONDS``: the duration, 60 s by default.
"""

import json
import os
import sys
from collections import Counter

from monasca_common.kafka.message import TopicPartition
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.api.api_case import metric
from monasca_common.tests.functional.api.test_api_kafka import FloodCase
from monasca_common.tests.kafka_proxy import ApiKey, Fault

SECONDS = float(os.environ.get("MONASCA_STRESS_OVERLOAD_SECONDS", "60"))
LIMIT = 32
CONNECTIONS = 10 * LIMIT
BULK = 20
ANSWER_SECONDS = 5.0  # for posts that wait for Kafka; the client shares the machine
MOST_GROWTH_BYTES = 50_000_000


class TestOverload(FloodCase):
    def overload(self):
        """Overload the API for the duration, check it, and return the number of responses by status."""
        api = self.api(api=[f"max_in_flight = {LIMIT}", "publish_timeout_seconds = 2"])
        self.assertEqual(204, api.post(metric("warm"))[0])
        (worker,) = api.workers()
        before = worker.memory_info().rss
        body = json.dumps([metric(f"m{number}") for number in range(BULK)]).encode()
        answers = self.flood(api, body, CONNECTIONS, seconds=SECONDS)
        grown = worker.memory_info().rss - before
        statuses = Counter(status for status, _, _ in answers)
        slowest = max(seconds for _, seconds, _ in answers)
        sys.stderr.write(
            f"{len(answers)} requests in {SECONDS:.0f} s: {dict(statuses)}, slowest {slowest:.2f} s, "
            f"grown by {grown / 1e6:.1f} MB\n"
        )
        self.assertEqual([worker.pid], [each.pid for each in api.workers()], "the worker was replaced")
        self.assertLessEqual(set(statuses), {204, 503})
        self.assertLess(slowest, ANSWER_SECONDS)
        self.assertLess(grown, MOST_GROWTH_BYTES)
        return statuses

    def logged(self):
        """Return the number of records of the topic."""
        partitions = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        return sum(self.cluster.admin.end_offsets(partitions).values())

    def test_a_minute_of_overload_needs_constant_memory_and_loses_no_acknowledged_message(self):
        statuses = self.overload()
        self.assertGreater(statuses[204], 0)
        with each_once():
            self.assertGreaterEqual(self.logged(), BULK * statuses[204])

    def test_overload_with_a_slow_kafka_needs_constant_memory_and_loses_no_acknowledged_message(self):
        self.fixture.proxy.add(Fault.delay_answer(ApiKey.PRODUCE, seconds=0.5))
        statuses = self.overload()
        self.assertGreater(statuses[204], 0)
        self.assertGreater(statuses[503], 0)
