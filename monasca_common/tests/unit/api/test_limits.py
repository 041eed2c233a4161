# SPDX-License-Identifier: Apache-2.0
import threading

from falcon import testing
from oslotest import base

from monasca_common.api.limits import InFlightLimit, RequestSlots, request_slots, threads_of
from monasca_common.api.settings import ApiSettings
from monasca_common.tests.unit.api.api_case import ApiCase, metric

SLOTS = RequestSlots(posts=4, others=2, own_of_topic=1, common=2)


class Gate:
    """An application whose requests stay in flight until `open`."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, environ, start_response):
        self.entered.release()
        self.opened.wait(50)
        if environ["PATH_INFO"] == "/raises":
            raise RuntimeError
        start_response("204 No Content", [])
        return []


class LimitCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.gate = Gate()
        self.client = testing.TestClient(InFlightLimit(self.gate, SLOTS))
        self.addCleanup(self.gate.opened.set)

    def start(self, method, count, path="/v2.0/metrics"):
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(self.client.simulate_request(method, path)))
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            self.assertTrue(self.gate.entered.acquire(timeout=50))
        return threads, answers


class TestInFlightLimit(LimitCase):
    def test_a_request_above_the_limit_is_refused_immediately_and_the_others_continue(self):
        threads, answers = self.start("POST", 4)
        refused = self.client.simulate_post("/v2.0/metrics")
        self.assertEqual(
            (503, "1", 503), (refused.status_code, refused.headers["Retry-After"], refused.json["error"]["code"])
        )
        self.gate.opened.set()
        for thread in threads:
            thread.join(50)
        self.assertEqual([204] * 4, [answer.status_code for answer in answers])
        self.assertEqual(204, self.client.simulate_post("/v2.0/metrics").status_code)

    def test_a_slow_database_occupies_no_slots_of_posts(self):
        self.start("GET", 1)
        self.start("POST", 1, "/v2.0/alarm-definitions")
        self.assertEqual(503, self.client.simulate_get("/v2.0/metrics").status_code)
        self.start("POST", 4)
        self.assertEqual(503, self.client.simulate_post("/v2.0/metrics").status_code)

    def test_posts_that_wait_for_kafka_occupy_no_slots_of_reads(self):
        for path in ("/v2.0/metrics", "/v2.0/logs/", "/v1.0/events", "/v2.0/logs"):
            self.start("POST", 1, path)
        self.assertEqual(503, self.client.simulate_post("/v1.0/events").status_code)
        self.start("GET", 2)

    def test_health_requests_get_a_response_without_a_slot(self):
        self.start("POST", 4)
        self.gate.opened.set()
        self.assertEqual(204, self.client.simulate_get("/healthcheck").status_code)

    def test_a_failed_request_releases_its_slot(self):
        self.gate.opened.set()
        for _ in range(9):
            self.assertRaises(RuntimeError, self.client.simulate_post, "/raises")
        self.assertEqual(204, self.client.simulate_post("/v2.0/metrics").status_code)


class TestAuthenticated(LimitCase):
    """Tokens are validated only for requests with a slot."""

    def authenticated(self, app):
        def validate(environ, start_response):
            self.validated.append(environ["PATH_INFO"])
            return app(environ, start_response)

        self.validated = []
        return validate

    def setUp(self):
        super().setUp()
        self.client = testing.TestClient(InFlightLimit(self.gate, SLOTS, self.authenticated))

    def test_a_request_beyond_the_limit_is_not_validated(self):
        self.start("POST", 4)
        self.start("GET", 2)
        for method in ("GET", "POST"):
            self.assertEqual(503, self.client.simulate_request(method, "/v2.0/metrics").status_code)
        self.assertEqual(["/v2.0/metrics"] * 6, self.validated)

    def test_health_requests_get_a_response_without_validation(self):
        self.start("POST", 4)
        self.gate.opened.set()
        self.assertEqual(204, self.client.simulate_get("/healthcheck").status_code)
        self.assertEqual(4, len(self.validated))

    def test_a_validated_request_without_a_free_slot_is_refused(self):
        client = testing.TestClient(
            InFlightLimit(
                self.gate,
                SLOTS,
                lambda app: lambda *given: (client.app._posts.clear(), app(*given))[1],
            )
        )
        self.assertEqual(503, client.simulate_post("/v2.0/metrics").status_code)


class TestSlots(base.BaseTestCase):
    def test_a_quarter_of_the_slots_is_reserved_per_topic(self):
        self.assertEqual(
            RequestSlots(posts=64 + 2 * 16, others=32, own_of_topic=16, common=48), request_slots(ApiSettings())
        )
        self.assertEqual(64 + 3 * 16, request_slots(ApiSettings(invalid_metrics="drop")).posts)
        self.assertEqual(
            RequestSlots(posts=4, others=1, own_of_topic=1, common=1), request_slots(ApiSettings(max_in_flight=2))
        )

    def test_requests_that_wait_for_keystone_have_separate_threads(self):
        self.assertEqual(12 + 96 + 32 + 64, threads_of(ApiSettings(max_in_flight=64)))
        self.assertEqual(12 + 96 + 32, threads_of(ApiSettings(max_in_flight=64, auth_strategy="noauth")))


class TestOrder(ApiCase):
    def test_a_request_refused_for_load_is_not_read(self):
        client = self.new_client(max_in_flight=2)
        self.assertEqual(204, self.post("/v2.0/metrics", metric(), client=client).status_code)
        for _ in range(4):
            client.app._app._posts.pop()
        answer = self.post("/v2.0/metrics", b"not json", client=client)
        self.assertEqual(
            (503, 0, 0), (answer.status_code, answer.json["error"]["delivered"], answer.json["error"]["unknown"])
        )
