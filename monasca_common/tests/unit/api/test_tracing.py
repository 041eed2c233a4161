# SPDX-License-Identifier: Apache-2.0
import warnings
from dataclasses import replace

from monasca_common.kafka import ProducerPool
from monasca_common.kafka.testing import Fail
from monasca_common.tests.unit.api.api_case import NOW_MS, SECONDS, ApiCase, client_of, metric
from monasca_common.tests.unit.kafka.test_tracing import TracingCase

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class RequestTest(TracingCase, ApiCase):
    def producer_of(self, topic):
        self.kafka_settings = {"connection": replace(self.kafka.connection(), tracing="on")}
        return super().producer_of(topic)

    def new_client(self, tracing="on", **changes):
        settings = {"publish_timeout_seconds": 5.0, **changes}
        return client_of(ProducerPool(self.producer_of), None, settings, now=lambda: NOW_MS / 1000, tracing=tracing)

    def carried(self):
        return [dict(record.headers).get("traceparent", b"").decode() for record in self.records()]

    def test_a_request_continues_the_trace_of_its_client_up_to_its_messages(self):
        answer = self.post("/v2.0/metrics", [metric("a"), metric("b")], {"traceparent": PARENT, "tracestate": "v=1"})

        self.assertEqual(204, answer.status_code)
        request, send = self.span("POST /v2.0/metrics"), self.span("send metrics")
        self.assertEqual((int(TRACE, 16), 0x00F067AA0BA902B7), (request.context.trace_id, request.parent.span_id))
        self.assertEqual(request.context.span_id, send.parent.span_id)
        self.assertEqual(
            {"http.request.method": "POST", "http.route": "/v2.0/metrics", "http.response.status_code": 204},
            dict(request.attributes),
        )
        own = f"00-{TRACE}-{send.context.span_id:016x}-01"
        self.assertEqual([own, own], self.carried())
        self.assertEqual([b"v=1"] * 2, [dict(record.headers)["tracestate"] for record in self.records()])

    def test_a_request_without_a_context_starts_a_trace(self):
        self.post("/v2.0/metrics", metric())
        self.assertIsNone(self.span("POST /v2.0/metrics").parent)
        self.assertEqual(1, len(list(filter(None, self.carried()))))

    def test_a_trace_that_the_client_does_not_sample_has_no_spans(self):
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

        self.trace(ParentBased(ALWAYS_ON))
        self.assertEqual(204, self.post("/v2.0/metrics", metric(), {"traceparent": PARENT[:-1] + "0"}).status_code)
        self.assertEqual(([""], []), (self.carried(), self.spans()))

    def test_an_invalid_context_is_ignored(self):
        invalid = ("", "0", PARENT + "-", PARENT.upper(), f"{PARENT},{PARENT}", "ff" + PARENT[2:], "1" * 600, "\xe9")
        for parent in invalid:
            answer = self.post("/v2.0/metrics", metric(), {"traceparent": parent, "tracestate": ",=,\xe9"})
            self.assertEqual(204, answer.status_code, parent)
        self.assertEqual({None}, {span.parent for span in self.spans("POST /v2.0/metrics")})

    def test_the_span_of_another_layer_is_the_parent(self):
        with self.tracer.start_as_current_span("server") as server:
            self.post("/v2.0/metrics", metric(), {"traceparent": PARENT})
        self.assertEqual(server.context.span_id, self.span("POST /v2.0/metrics").parent.span_id)

    def test_a_repeated_request_with_a_key_has_the_same_ids_in_another_trace(self):
        for parent in (PARENT, PARENT.replace("00f067aa", "11f067aa")):
            self.post("/v2.0/metrics", metric(), {"traceparent": parent, "Idempotency-Key": "key-1"})
        first, second = self.records()
        self.assertEqual(first.message_id, second.message_id)
        self.assertNotEqual(*self.carried())

    def test_paths_of_other_routes_are_not_in_names(self):
        self.client.simulate_get("/secret/path", headers={"traceparent": PARENT})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # wsgiref does not know this method
            self.client.simulate_request("PROPFIND", "/v2.0/metrics")
        self.assertEqual({"GET other", "other /v2.0/metrics"}, {span.name for span in self.spans()})

    def test_a_request_that_kafka_does_not_acknowledge_is_an_error(self):
        client = self.new_client(publish_timeout_seconds=SECONDS)
        self.post("/v2.0/metrics", metric(), client=client)
        self.kafka.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=None)
        answer = self.post("/v2.0/metrics", metric(), client=client)

        self.assertEqual(503, answer.status_code)
        for name in ("POST /v2.0/metrics", "send metrics"):
            self.assertEqual([False], [each.status.is_ok for each in self.spans(name) if not each.status.is_unset])

    def test_without_the_option_there_is_no_span(self):
        answer = self.post("/v2.0/metrics", metric(), {"traceparent": PARENT}, client=self.new_client(tracing="off"))
        self.assertEqual((204, [""], []), (answer.status_code, self.carried(), self.spans()))
