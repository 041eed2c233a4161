# SPDX-License-Identifier: Apache-2.0
import itertools
import math
import threading

import fixtures
from oslotest import base

from monasca_common.api.limits import request_slots
from monasca_common.api.publishing import TopicRequestSlots
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import producer_pool
from monasca_common.kafka.transport.memory.injection import Fail, LoseAnswer
from monasca_common.tests.unit.api.api_case import SECONDS, ApiCase, metric

METRICS = "/v2.0/metrics"
LOGS = "/v2.0/logs"
EVENTS = "/v1.0/events"
A_LOG = {"logs": [{"message": "a"}]}
AN_EVENT = {"events": [{"event": {"event_type": "a"}}]}
PATIENCE = 60.0  # normally milliseconds


class TestUndelivered(ApiCase):
    def setUp(self):
        super().setUp()
        self.patch(producer_pool, "_PROBE_AFTER_SECONDS", 3600.0)  # no probe on a slow machine
        self.impatient = self.new_client(publish_timeout_seconds=SECONDS)
        self.post(METRICS, metric())

    def test_messages_to_an_unavailable_broker_are_unknown_with_retry_after(self):
        self.kafka.broker.disconnect()
        answer = self.post(METRICS, [metric("a"), metric("b")], client=self.impatient)
        self.assertEqual((503, "1"), (answer.status_code, answer.headers["Retry-After"]))
        counts = {name: answer.json["error"][name] for name in ("delivered", "failed", "unknown")}
        self.assertEqual({"delivered": 0, "failed": 0, "unknown": 2}, counts)

    def test_messages_rejected_by_a_broker_are_failed(self):
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic="metrics", nth=2)
        answer = self.post(METRICS, [metric("a"), metric("b")])
        self.assertEqual(503, answer.status_code)
        counts = {name: answer.json["error"][name] for name in ("delivered", "failed", "unknown")}
        self.assertEqual({"delivered": 1, "failed": 1, "unknown": 0}, counts)
        self.assertIn("1 delivered, 1 failed, 0 unknown", answer.json["error"]["message"])

    def test_a_lost_acknowledgement_is_not_a_success(self):
        self.kafka.broker.inject("produce", LoseAnswer(math.inf), topic="metrics")
        answer = self.post(METRICS, metric("a"), client=self.impatient)
        self.assertEqual((503, 1), (answer.status_code, answer.json["error"]["unknown"]))

    def test_a_message_too_large_for_its_topic_gets_status_413(self):
        self.kafka.broker.create_topic("small", 1, max_message_bytes=1000)
        client = self.new_client(metrics_topic="small")
        large = metric("large", dimensions={f"d{number}": "x" * 200 for number in range(9)})
        answer = self.post(METRICS, [metric("a"), large], client=client)
        self.assertEqual(413, answer.status_code)
        self.assertEqual((1, 1), (answer.json["error"]["delivered"], answer.json["error"]["failed"]))

    def test_more_messages_than_can_be_in_flight_get_status_413_and_are_not_sent(self):
        self.kafka_settings = {"budget_messages": 2}  # the budget of producers opened after this line
        self.assertEqual(204, self.post(LOGS, {"logs": A_LOG["logs"] * 2}).status_code)
        answer = self.post(LOGS, {"logs": A_LOG["logs"] * 3})
        self.assertEqual(413, answer.status_code)
        self.assertIn("3 messages, more than budget_messages in group [kafka], 2", answer.json["error"]["message"])
        self.assertEqual(2, len(self.records("log")))

    def test_messages_larger_than_the_whole_budget_are_sent_in_parts(self):
        self.kafka_settings = {"budget_bytes": 4000}  # the budget of producers opened after this line
        self.assertEqual(204, self.post(LOGS, {"logs": [{"message": "x" * 400}] * 20}).status_code)
        self.assertEqual(20, len(self.records("log")))
        self.assertEqual(413, self.post(LOGS, {"logs": [{"message": "x" * 4000}] * 2}).status_code)

    def test_posts_to_a_stalled_topic_are_refused_immediately(self):
        self.patch(producer_pool, "_LOOK_SECONDS", 0.0)  # the topic is checked at each post
        self.kafka.broker.disconnect()
        self.post(METRICS, metric("waits"), client=self.new_client(publish_timeout_seconds=2 * SECONDS))
        self.patch(producer_pool, "STALLED_AFTER_SECONDS", SECONDS)
        client = self.new_client(publish_timeout_seconds=3600.0)
        answer = self.post(METRICS, [metric("a"), metric("b")], client=client)
        self.assertEqual(503, answer.status_code)
        self.assertEqual((0, 2, 0), tuple(answer.json["error"][name] for name in ("delivered", "failed", "unknown")))
        answer = self.post(METRICS, metric("a"), {"Idempotency-Key": "k"}, client=client)
        self.assertEqual((0, 0, 1), tuple(answer.json["error"][name] for name in ("delivered", "failed", "unknown")))
        self.kafka.broker.reconnect()
        while self.producer.health().outstanding_messages:  # the post that waits is delivered
            threading.Event().wait(0.001)
        self.assertEqual(204, self.post(METRICS, metric("c"), client=self.new_client()).status_code)
        self.assertEqual({"cpu.percent", "waits", "c"}, {value["metric"]["name"] for value in self.values()})


class TestStuckTopic(ApiCase):
    """Only the topic of logs does not acknowledge."""

    def setUp(self):
        super().setUp()
        self.patch(producer_pool, "_PROBE_AFTER_SECONDS", 3600.0)
        self.kafka.broker.inject("produce", LoseAnswer(math.inf), topic="log", count=None)

    def counts(self, answer):
        return tuple(answer.json["error"][name] for name in ("delivered", "failed", "unknown"))

    def test_only_posts_to_the_stuck_topic_are_refused(self):
        self.post(LOGS, A_LOG, client=self.new_client(publish_timeout_seconds=2 * SECONDS))
        self.patch(producer_pool, "STALLED_AFTER_SECONDS", SECONDS)
        client = self.new_client(publish_timeout_seconds=3600.0)
        refused = self.post(LOGS, A_LOG, client=client)
        self.assertEqual((503, "1"), (refused.status_code, refused.headers["Retry-After"]))
        self.assertEqual((0, 1, 0), self.counts(refused))
        self.assertIn("log", refused.json["error"]["message"])
        self.assertEqual(204, self.post(METRICS, metric(), client=client).status_code)
        self.assertEqual(200, self.post(EVENTS, AN_EVENT, client=client).status_code)

    def test_a_stuck_topic_leaves_slots_to_others(self):
        client = self.new_client(max_in_flight=2, publish_timeout_seconds=PATIENCE)
        at_kafka = self.waiting_posts("log")
        waiting = [self.start_post(client) for _ in range(2)]
        self.wait_for(at_kafka, 2)
        refused = self.post(LOGS, A_LOG, client=client)
        self.assertEqual((503, "1"), (refused.status_code, refused.headers["Retry-After"]))
        self.assertEqual((0, 1, 0), self.counts(refused))
        for _ in range(3):
            self.assertEqual(204, self.post(METRICS, metric(), client=client).status_code)
        self.producer_of("log").close(0.0)
        for thread in waiting:
            thread.join(PATIENCE)

    def test_two_stuck_topics_leave_slots_to_a_third(self):
        self.kafka.broker.inject("produce", LoseAnswer(math.inf), topic="monevents", count=None)
        client = self.new_client(max_in_flight=2, publish_timeout_seconds=PATIENCE)
        at_kafka = {topic: self.waiting_posts(topic) for topic in ("log", "monevents")}
        waiting = [self.start_post(client) for _ in range(2)]
        self.wait_for(at_kafka["log"], 2)
        waiting.append(self.start_post(client, EVENTS, AN_EVENT))
        self.wait_for(at_kafka["monevents"], 1)
        self.assertEqual(503, self.post(EVENTS, AN_EVENT, client=client).status_code)
        self.assertEqual(204, self.post(METRICS, metric(), client=client).status_code)
        for topic in at_kafka:
            self.producer_of(topic).close(0.0)
        for thread in waiting:
            thread.join(PATIENCE)

    def test_a_stuck_dead_letter_topic_leaves_slots_to_valid_metrics(self):
        self.kafka.broker.inject("produce", LoseAnswer(math.inf), topic="metrics.dlq", count=None)
        client = self.new_client(max_in_flight=4, publish_timeout_seconds=PATIENCE, invalid_metrics="drop")
        body = [metric(), metric(name="")]
        at_kafka = self.waiting_posts("metrics.dlq")
        waiting = []
        for _ in range(4):
            waiting.append(self.start_post(client, METRICS, body))
            self.wait_for(at_kafka, 1)  # until the post waits, it has a slot of each of its topics
        refused = self.post(METRICS, body, client=client)
        self.assertEqual((503, (0, 2, 0)), (refused.status_code, self.counts(refused)))
        self.assertEqual(204, self.post(METRICS, metric(), client=client).status_code)
        self.assertEqual(5, len(self.records()))  # no message of a refused post was sent
        self.producer_of("metrics.dlq").close(0.0)
        for thread in waiting:
            thread.join(PATIENCE)

    def test_a_stuck_topic_uses_only_its_share_of_the_budget(self):
        self.kafka_settings = {"budget_messages": 2}  # the budget of producers opened after this line
        impatient = self.new_client(publish_timeout_seconds=SECONDS)
        for _ in range(3):
            self.assertEqual(503, self.post(LOGS, A_LOG, client=impatient).status_code)
        self.assertEqual(2, self.unanswered("log"))
        self.assertEqual(204, self.post(METRICS, [metric(), metric(), metric()]).status_code)

    def test_a_topic_without_permission_stops_only_its_posts(self):
        self.kafka.broker.clear_faults()
        self.kafka.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True), topic="log")
        self.assertEqual(503, self.post(LOGS, A_LOG).status_code)
        self.assertTrue(self.producer_of("log").health().finished)
        self.assertEqual(204, self.post(METRICS, metric()).status_code)

    def unanswered(self, topic):
        return self.producer_of(topic).health().outstanding_messages

    def waiting_posts(self, topic):
        """Return a semaphore that each post releases when it starts to wait for the topic."""
        waiting, producer = threading.Semaphore(0), self.producer_of(topic)
        publish = producer.publish

        def publish_and_say(*arguments, **named):
            waiting.release()
            return publish(*arguments, **named)

        self.useFixture(fixtures.MockPatchObject(producer, "publish", publish_and_say))
        return waiting

    def wait_for(self, waiting, count):
        for _ in range(count):
            self.assertTrue(waiting.acquire(timeout=PATIENCE))

    def start_post(self, client, path=LOGS, body=A_LOG):
        thread = threading.Thread(target=self.post, args=(path, body), kwargs={"client": client})
        thread.start()
        return thread


class TestReopening(ApiCase):
    def finish(self):
        """Refuse one write with a fatal error, with which a request fails."""
        self.kafka.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        self.assertEqual(503, self.post(METRICS, metric()).status_code)
        self.assertTrue(self.producer.health().finished)

    # Rule 6
    def test_a_post_after_a_fatal_error_is_accepted_once_it_is_permitted(self):
        self.finish()
        other = self.new_client()  # the worker has not checked the producer recently
        self.assertEqual(204, self.post(METRICS, metric(), client=other).status_code)
        self.assertEqual(1, len(self.records()))

    def test_a_worker_without_posts_becomes_healthy_by_health_checks(self):
        self.finish()
        self.assertEqual(200, self.client.simulate_get("/healthcheck", params={"part": "producer"}).status_code)


class TestTopicSlots(base.BaseTestCase):
    """``max_in_flight`` is 4, and each of three topics has a reserved slot."""

    def setUp(self):
        super().setUp()
        self.slots = TopicRequestSlots(request_slots(ApiSettings(max_in_flight=4)))

    def taken(self, topic):
        """Return the number of posts of the topic that get a slot."""
        return sum(self.slots.take(topic) for _ in range(10))

    def test_a_topic_has_slots_regardless_of_the_number_of_stuck_topics(self):
        for stuck in itertools.permutations(("metrics", "log", "monevents")):
            self.slots = TopicRequestSlots(request_slots(ApiSettings(max_in_flight=4)))
            self.assertEqual([4, 1, 1], [self.taken(topic) for topic in stuck])

    def test_a_released_slot_is_common_again(self):
        self.assertEqual(4, self.taken("log"))
        for _ in range(4):
            self.slots.give_back("log")
        self.assertEqual([4, 1], [self.taken("metrics"), self.taken("log")])
        self.slots.give_back("metrics")
        self.assertEqual([1, 0], [self.taken("log"), self.taken("metrics")])
