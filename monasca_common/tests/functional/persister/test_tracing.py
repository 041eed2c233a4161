# SPDX-License-Identifier: Apache-2.0
"""A trace from a request through Kafka to the row in the database, and to a dead letter."""

import threading
from dataclasses import replace

from monasca_common.kafka import ProducerPool
from monasca_common.kafka.message import Record
from monasca_common.kafka.plugins import kafka_producer
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.persister.service import OUTCOMES, PREFIX, persister_member
from monasca_common.persister.settings import GroupSettings
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.base import Kind
from monasca_common.storage.write_metrics import WriteMetrics
from monasca_common.tests.functional.persister.persister_case import SECONDS, PersisterCase
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.unit.api.api_case import client_of
from monasca_common.tests.unit.kafka.test_tracing import TracingCase, ids, linked

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = f"00-{TRACE}-00f067aa0ba902b7-01"
NAME = "metrics-0"


class TraceTest(TracingCase, PersisterCase):
    def setUp(self):
        super().setUp()
        self.traced = replace(self.connection, tracing="messaging")
        settings = ProducerSettings(self.traced, linger_ms=0)
        pool = ProducerPool(lambda _topic: kafka_producer(settings))
        self.addCleanup(pool.close, 1.0)
        api = {"metrics_topic": self.topic, "publish_timeout_seconds": SECONDS}
        self.api = client_of(pool, None, api, tracing=self.traced.tracing)
        consumer = ConsumerSettings(self.traced, (self.topic,), self.group, stop_timeout_seconds=2.0)
        group = GroupSettings("kafka_metrics", Kind.METRICS, 1, 1, 1000, consumer, settings)
        storage, metrics = (
            open_storage(StorageSettings(self.database, self.url)),
            WriteMetrics(PREFIX, [NAME], OUTCOMES),
        )
        self.member = persister_member(group, storage, metrics, MemberStatus(NAME))
        thread = threading.Thread(target=self.member.run, daemon=True)
        thread.start()
        self.addCleanup(thread.join, SECONDS)
        self.addCleanup(self.member.stop)

    def test_the_spans_of_a_row_and_of_a_dead_letter_link_the_trace_of_the_request(self):
        body = {"name": "cpu", "dimensions": {}, "timestamp": self.base_ms, "value": 1.0}
        headers = {"X-Project-Id": "t1", "traceparent": CONTEXT}
        self.assertEqual(204, self.api.simulate_post("/v2.0/metrics", json=body, headers=headers).status_code)
        self.wait_until(lambda: self.rows() == [0] and self.spans(f"process {self.topic}"), "a row and its span")

        send, batch, row = map(self.span, (f"send {self.topic}", f"process {self.topic}", "store rows"))
        self.assertEqual(int(TRACE, 16), send.context.trace_id)
        self.assertEqual([ids(send)], linked(batch))
        self.assertEqual(ids(batch), (row.context.trace_id, row.parent.span_id))

        bad = Record(b"no metric", headers=(("traceparent", CONTEXT.encode()),))
        self.producer.publish(self.topic, [bad]).raise_for_undelivered()
        self.wait_until(lambda: self.spans(f"dead_letter {self.topic}"), "the span of a dead letter")
        self.assertEqual([(int(TRACE, 16), 0x00F067AA0BA902B7)], linked(self.span(f"dead_letter {self.topic}")))
        (letter,) = read_topic(self.cluster, self.dlq)
        self.assertEqual(CONTEXT.encode(), dict(letter.headers())["traceparent"])
