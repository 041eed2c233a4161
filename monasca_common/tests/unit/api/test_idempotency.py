# SPDX-License-Identifier: Apache-2.0
import hashlib
import threading
import uuid

from oslotest import base

from monasca_common.api.ingest import PostContext, message_ids
from monasca_common.api.settings import ApiSettings
from monasca_common.models.metric import MetricDecoder
from monasca_common.tests.unit.api.api_case import SECONDS, ApiCase, metric, uuid_7

METRICS = "/v2.0/metrics"
_NOW_MS = 1_790_000_000_123
KEY = {"Idempotency-Key": "4c7a/1"}


class TestMessageIds(base.BaseTestCase):
    def ids(self, tenant="t", path="/p", key="k", elements=(b"a", b"b"), indices=(0, 1)):
        return message_ids(tenant, path, key, elements, indices)

    def test_message_ids_do_not_depend_on_time_or_worker(self):
        parts = b"\0\0\0\1t" + b"\0\0\0\2/p" + b"\0\0\0\1k" + b"\0" * 8 + b"a"
        self.assertEqual(hashlib.sha256(parts).digest(), self.ids()[0])

    def test_each_input_changes_the_message_id(self):
        ids = set(self.ids())
        others = [
            self.ids(tenant="u"),
            self.ids(path="/q"),
            self.ids(key="l"),
            self.ids(elements=(b"c", b"d")),
            self.ids(indices=(2, 3)),
            self.ids(tenant="t/", path="p"),
        ]
        for other in others:
            self.assertEqual(set(), ids & set(other))

    def test_equal_elements_of_a_request_have_different_ids(self):
        self.assertEqual(2, len(set(self.ids(elements=(b"a", b"a")))))

    def test_rejecting_an_element_changes_no_other_id(self):
        self.assertEqual(self.ids()[1:], self.ids(elements=(b"b",), indices=(1,)))


class TestKeyTime(base.BaseTestCase):
    def created_ms(self, key, now_ms=_NOW_MS):
        return round(PostContext(ApiSettings(), None, now=lambda: now_ms / 1000).creation_time(key) * 1000)

    def test_a_uuid_of_version_7_has_its_creation_time(self):
        self.assertEqual(_NOW_MS - 5000, self.created_ms(uuid_7(_NOW_MS - 5000)))
        example = "017F22E2-79B0-7CC3-98C4-DC0C0C07398F"  # of RFC 9562
        self.assertEqual(1_645_557_742_000, self.created_ms(example, 1_645_557_743_000))

    def test_other_keys_have_no_creation_time(self):
        for key in (
            None,
            str(uuid.UUID(int=5, version=4)),
            "4c7a/1",
            uuid_7(_NOW_MS - 5000) + "0",
            uuid_7(_NOW_MS - 5000).replace("-", ""),
        ):
            self.assertEqual(_NOW_MS, self.created_ms(key), key)


class TestIdempotencyKey(ApiCase):
    def ids(self, topic="metrics"):
        return [record.message_id for record in self.records(topic)]

    def test_a_repeat_has_the_same_messages_at_any_worker(self):
        body = [metric("a"), metric("b")]
        self.assertEqual(204, self.post(METRICS, body, KEY).status_code)
        first = set(self.ids())
        other_worker = self.new_client(producer=self.kafka.producer())
        self.assertEqual(204, self.post(METRICS, body, KEY, client=other_worker).status_code)
        self.assertEqual((2, 4, first), (len(first), len(self.ids()), set(self.ids())))

    def at(self, now_ms, body, headers=None):
        """Post at this time to a new worker."""
        client = self.new_client(producer=self.kafka.producer(), now=lambda: now_ms / 1000)
        self.assertEqual(204, self.post(METRICS, body, headers, client=client).status_code)

    def versions_and_what_stays(self):
        rows = MetricDecoder().decode_all([record.value for record in self.records()]).rows
        return sorted(row.version for row in rows), max(rows, key=lambda row: (row.version, row.value)).value

    # Rule 27
    def test_a_repeat_with_a_uuid_of_version_7_does_not_overwrite_a_correction(self):
        key = {"Idempotency-Key": uuid_7(_NOW_MS - 100)}
        self.at(_NOW_MS, metric(value=1), key)
        self.at(_NOW_MS + 400, metric(value=0))
        self.at(_NOW_MS + 5000, metric(value=1), key)
        self.assertEqual(([_NOW_MS - 100, _NOW_MS - 100, _NOW_MS + 400], 0), self.versions_and_what_stays())

    def test_the_time_of_an_old_or_future_key_is_ignored(self):
        for key_ms in (_NOW_MS - 86_400_000, _NOW_MS + 60_001):
            self.at(_NOW_MS, metric(value=1), {"Idempotency-Key": uuid_7(key_ms)})
        self.assertEqual([_NOW_MS] * 2, self.versions_and_what_stays()[0])

    def test_requests_without_a_key_have_new_ids(self):
        self.post(METRICS, metric())
        self.post(METRICS, metric())
        self.assertEqual(2, len(set(self.ids())))

    def test_only_changed_elements_have_new_ids(self):
        self.post(METRICS, [metric("a"), metric("b")], KEY)
        self.post(METRICS, [metric("a"), metric("c")], KEY)
        self.assertEqual((4, 3), (len(self.ids()), len(set(self.ids()))))

    def test_equal_keys_of_two_tenants_have_different_ids(self):
        self.post(METRICS, metric(), KEY)
        self.post(METRICS, metric(), {**KEY, "X-Project-Id": "t2"})
        self.assertEqual(2, len(set(self.ids())))

    def test_repeated_dead_letters_have_the_same_ids(self):
        client = self.new_client(invalid_metrics="drop")
        for _ in range(2):
            self.post(METRICS, [metric("("), metric()], KEY, client=client)
        self.assertEqual((2, 1), (len(self.ids("metrics.dlq")), len(set(self.ids("metrics.dlq")))))

    def test_a_repeat_waits_for_the_first_request_in_flight(self):
        self.post(METRICS, metric("warm"))
        self.kafka.broker.disconnect()
        attached = self.an_attachment()
        answers = []
        posts = [threading.Thread(target=lambda: answers.append(self.post(METRICS, metric(), KEY))) for _ in range(2)]
        for thread in posts:
            thread.start()
        self.assertTrue(attached.wait(50), "no request attached to the one in flight")
        impatient = self.post(METRICS, metric(), KEY, client=self.new_client(publish_timeout_seconds=SECONDS))
        self.assertEqual((503, 1), (impatient.status_code, impatient.json["error"]["unknown"]))
        self.kafka.broker.reconnect()
        for thread in posts:
            thread.join(50)
        self.assertEqual([204, 204], [answer.status_code for answer in answers])
        self.assertEqual(2, len(self.ids()))

    def test_an_invalid_key_is_refused_before_any_message_is_sent(self):
        for key in ("", " ", "a b", "é", "x" * 256, "a\tb"):
            self.assertEqual(400, self.post(METRICS, metric(), {"Idempotency-Key": key}).status_code, key)
        self.assertEqual([], self.records())
        self.assertEqual(204, self.post(METRICS, metric(), {"Idempotency-Key": "~" * 255}).status_code)

    def an_attachment(self):
        """Return an event that is set when a message waits for an earlier one with its id."""
        happened = threading.Event()
        reserve = self.producer._table.reserve

        def reserving(bulk):
            reserved = reserve(bulk)
            if any(attempt.successor is not None for attempt in bulk.attempts.values()):
                happened.set()
            return reserved

        self.patch(self.producer._table, "reserve", reserving)
        return happened
