# SPDX-License-Identifier: Apache-2.0
import itertools
from unittest import mock

from oslotest import base

from monasca_common.api.reopening import Reopening
from monasca_common.kafka import ClosedError, ConfigurationError
from monasca_common.kafka.testing import Fail
from monasca_common.tests.unit.api.api_case import ApiCase, metric

METRICS = "/v2.0/metrics"


class WorkerTest(ApiCase):
    def finish(self):
        """The permission to write is missing, once: a fatal error, at which a request fails."""
        self.kafka.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        self.assertEqual(503, self.post(METRICS, metric()).status_code)
        self.assertTrue(self.producer.health().finished)

    # Rule 6
    def test_a_post_after_a_fatal_error_is_taken_once_the_permission_is_there(self):
        self.finish()
        other = self.new_client()  # whose look at the producer is not a moment ago
        self.assertEqual(204, self.post(METRICS, metric(), client=other).status_code)
        self.assertEqual(1, len(self.records()))

    def test_a_worker_that_gets_no_posts_becomes_healthy_by_being_asked(self):
        self.finish()
        self.assertEqual(200, self.client.simulate_get("/healthcheck", params={"part": "producer"}).status_code)


class BackOffTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.producer = mock.Mock()
        self.producer.health.return_value.finished = True
        self.reopening = Reopening(self.producer, monotonic=lambda: self.now)

    def attempts_within(self, seconds):
        """The seconds at which it was reopened, asked every half second."""
        began, attempts = self.now, []
        while self.now < began + seconds:
            before = self.producer.reopen.call_count
            self.reopening.reopen_if_finished()
            if self.producer.reopen.call_count > before:
                attempts.append(self.now - began)
            self.now += 0.5
        return attempts

    def test_the_pauses_grow_up_to_a_minute(self):
        attempts = self.attempts_within(300)
        pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
        self.assertEqual([1, 2, 4, 8, 16, 32, 60, 60, 60], pauses[:9])

    def test_after_a_time_without_trouble_it_begins_anew(self):
        self.attempts_within(100)
        self.producer.health.return_value.finished = False
        self.assertEqual([], self.attempts_within(300))
        self.producer.health.return_value.finished = True
        self.assertEqual([0, 1, 3], self.attempts_within(5))

    def test_what_keeps_it_from_opening_is_not_the_requests_to_hear(self):
        for error in (ConfigurationError("no"), ClosedError("closed")):
            self.producer.reopen.side_effect = error
            self.now += 60
            self.reopening.reopen_if_finished()
        self.assertEqual(2, self.producer.reopen.call_count)
