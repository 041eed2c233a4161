# SPDX-License-Identifier: Apache-2.0
"""The option dictionaries of clients; librdkafka accepts each of them."""

from __future__ import annotations

import dataclasses

import confluent_kafka
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.kafka.transport.librdkafka_options import (
    admin_options,
    connection_options,
    consumer_options,
    make_client,
    producer_options,
)

CONNECTION = ConnectionSettings("127.0.0.1:1", client_id="tests", security={"security.protocol": "plaintext"})
QUIET = {"log_level": 0}  # no server listens at this address
PRODUCER = ProducerSettings(CONNECTION)
CONSUMER = ConsumerSettings(CONNECTION, ("metrics",), "group")


class ProducerOptionsTest(base.BaseTestCase):
    # Rule 1
    def test_a_producer_is_safe_by_default(self):
        options = producer_options(PRODUCER)

        safe = {
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 0,
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
        }
        self.assertEqual(safe, {name: options[name] for name in safe})
        self.assertTrue(5 <= int(str(options["linger.ms"])) <= 50)

    def test_a_client_that_cannot_connect_tries_at_most_twice_a_second(self):
        for options in (producer_options(PRODUCER), consumer_options(CONSUMER), admin_options(CONNECTION)):
            self.assertEqual(500, options["reconnect.backoff.ms"])

    def test_the_first_back_off_is_at_most_the_longest_one_of_an_operator(self):
        quick = dataclasses.replace(PRODUCER, options={"reconnect.backoff.max.ms": "200"})
        options = producer_options(quick)
        self.assertEqual(200, options["reconnect.backoff.ms"])
        make_client("producer_options", lambda: confluent_kafka.Producer({**options, **QUIET}))
        own = {"reconnect.backoff.max.ms": "200", "reconnect.backoff.ms": "50"}
        self.assertEqual("50", producer_options(dataclasses.replace(PRODUCER, options=own))["reconnect.backoff.ms"])
        wrong = producer_options(dataclasses.replace(PRODUCER, options={"reconnect.backoff.max.ms": "soon"}))
        make = lambda: confluent_kafka.Producer({**wrong, **QUIET})  # noqa: E731
        self.assertRaises(ConfigurationError, make_client, "producer_options", make)

    def test_a_transactional_producer_does_not_set_the_message_timeout(self):
        options = producer_options(dataclasses.replace(PRODUCER, transactional_id="t", transaction_timeout_seconds=30))

        self.assertNotIn("message.timeout.ms", options)
        self.assertEqual(("t", 30_000), (options["transactional.id"], options["transaction.timeout.ms"]))

    # Rule 8
    def test_the_clients_queue_is_larger_than_the_budget(self):
        options = producer_options(dataclasses.replace(PRODUCER, budget_messages=10, budget_bytes=1024 * 1024))

        self.assertGreater(options["queue.buffering.max.messages"], 10)
        self.assertGreater(options["queue.buffering.max.kbytes"], 1024)

    def test_further_options_do_not_replace_those_that_are_set(self):
        raw = {"acks": "0", "client.id": "other", "statistics.interval.ms": "1000"}
        options = producer_options(dataclasses.replace(PRODUCER, options=raw))

        self.assertEqual(
            ("all", "tests", "1000"), (options["acks"], options["client.id"], options["statistics.interval.ms"])
        )

    def test_librdkafka_accepts_every_variant(self):
        for changes in (
            {},
            {"transactional_id": "t"},
            {"budget_messages": 10_000_000, "budget_bytes": 64 * 1024**3},
            {"budget_messages": 1, "budget_bytes": 1024 * 1024},
            {"compression": "zstd", "linger_ms": 0},
        ):
            confluent_kafka.Producer({**QUIET, **producer_options(dataclasses.replace(PRODUCER, **changes))})

    def test_further_options_override_defaults(self):
        raw = {"socket.keepalive.enable": "false", "fetch.queue.backoff.ms": "20"}

        self.assertEqual(
            "false", producer_options(dataclasses.replace(PRODUCER, options=raw))["socket.keepalive.enable"]
        )
        self.assertEqual("20", consumer_options(dataclasses.replace(CONSUMER, options=raw))["fetch.queue.backoff.ms"])


class ConsumerOptionsTest(base.BaseTestCase):
    def test_a_consumer_does_not_let_the_client_manage_offsets(self):
        options = consumer_options(CONSUMER)

        own = {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
            "partition.assignment.strategy": "cooperative-sticky",
            "isolation.level": "read_committed",
        }
        self.assertEqual(own, {name: options[name] for name in own})

    def test_the_prefetch_is_bounded(self):
        options = consumer_options(dataclasses.replace(CONSUMER, buffer_bytes=8 * 1024 * 1024))

        self.assertEqual(
            (8 * 1024, 8 * 1024 * 1024), (options["queued.max.messages.kbytes"], options["fetch.max.bytes"])
        )

    def test_new_topics_are_found_within_ten_seconds_and_the_metadata_remain_valid_during_an_outage(self):
        names = ("topic.metadata.refresh.interval.ms", "metadata.max.age.ms")
        self.assertEqual([10_000, 900_000], [consumer_options(CONSUMER)[name] for name in names])
        own = consumer_options(dataclasses.replace(CONSUMER, options=dict.fromkeys(names, "5")))
        self.assertEqual(["5", "5"], [own[name] for name in names])

    def test_with_kip_848_options_that_brokers_decide_are_not_set(self):
        options = consumer_options(dataclasses.replace(CONSUMER, group_protocol="consumer"))

        self.assertEqual("consumer", options["group.protocol"])
        for name in ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"):
            self.assertNotIn(name, options)

    def test_a_session_never_outlasts_the_poll_interval(self):
        options = consumer_options(dataclasses.replace(CONSUMER, max_poll_interval_seconds=6))

        self.assertEqual(
            (6000, 6000, 2000),
            (options["max.poll.interval.ms"], options["session.timeout.ms"], options["heartbeat.interval.ms"]),
        )

    def test_librdkafka_accepts_every_variant(self):
        for changes in (
            {},
            {"group_protocol": "consumer"},
            {"group_protocol": "consumer", "max_poll_interval_seconds": 1.0},
            {"max_poll_interval_seconds": 1.0},
            {"session_timeout_seconds": 0.5},
            {"assignment_strategy": "range", "group_instance_id": "one"},
            {"buffer_bytes": 1024 * 1024},
            {"buffer_bytes": 2048 * 1024 * 1024 - 1024},
        ):
            confluent_kafka.Consumer({**QUIET, **consumer_options(dataclasses.replace(CONSUMER, **changes))}).close()

    def test_an_administrator_needs_only_a_connection(self):
        expected = {"bootstrap.servers": "127.0.0.1:1", "client.id": "tests", "security.protocol": "plaintext"}

        self.assertEqual(expected, {name: connection_options(CONNECTION)[name] for name in expected})


class RefusedOptionsTest(base.BaseTestCase):
    def refusal_of(self, name: str, value: str) -> str:
        options = {"bootstrap.servers": "127.0.0.1:1", name: value}
        error = self.assertRaises(
            ConfigurationError, make_client, "producer_options", lambda: confluent_kafka.Producer(options)
        )
        self.assertIsNone(error.__context__)
        return str(error)

    def test_an_unknown_option_is_named(self):
        self.assertIn('"lingerr.ms"', self.refusal_of("lingerr.ms", "3"))

    def test_a_refused_value_is_not_quoted(self):
        for name, value in (
            ("compression.type", 'hu"sh" for x'),
            ("socket.timeout.ms", "999999999"),
            ("broker.address.family", "hush"),
            ("socket.keepalive.enable", "hush"),
        ):
            refusal = self.refusal_of(name, value)
            self.assertIn("producer_options", refusal)
            self.assertNotIn(value, refusal)
            self.assertNotIn("sh", refusal.replace("shared", ""))
