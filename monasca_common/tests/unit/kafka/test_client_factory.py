# SPDX-License-Identifier: Apache-2.0
"""The former signatures over the memory transport: the calls of services and their results."""

from __future__ import annotations

import itertools

import fixtures
from oslotest import base

from monasca_common.kafka import plugins
from monasca_common.kafka.client_factory.clients import ServiceConsumer
from monasca_common.kafka.client_factory.factory import get_kafka_consumer, get_kafka_producer
from monasca_common.kafka.errors import CommitUnknown, ConfigurationError, TransportError, UndeliveredError
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Batch, Record, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import Delay, Fail, VirtualClock

URL = ["memory://memory:9092"]
TOPIC = "metrics"


class FactoryTestCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryKafka())
        self.memory.broker.create_topic(TOPIC, 1)

    def producer(self, **config):
        producer = get_kafka_producer(URL, **config)
        self.addCleanup(producer.close, 0)
        return producer

    def consumer(self, **named):
        consumer = get_kafka_consumer(URL, "group", TOPIC, **named)
        self.addCleanup(consumer.close)
        return consumer

    def log(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value) for record in self.memory.broker.records(TOPIC)]


class ServiceProducerTest(FactoryTestCase):
    def test_nothing_is_unconfirmed_after_all_messages_are_delivered(self):
        self.assertEqual(0, self.producer().publish(TOPIC, ["one", b"two"], key="k"))

        self.assertEqual([(b"k", b"one"), (b"k", b"two")], self.log())

    def test_a_single_message_is_a_bulk_of_one(self):
        self.producer().publish(TOPIC, "über")

        self.assertEqual([(None, "über".encode())], self.log())

    def test_an_empty_bulk_is_a_bulk(self):
        # monasca-notification sends an empty list for each alarm without a failed notification.
        self.assertEqual(0, self.producer().publish(TOPIC, []))
        self.assertEqual([], self.log())

    def test_a_message_that_is_too_large_does_not_affect_the_rest_of_its_bulk(self):
        producer = self.producer()

        error = self.assertRaises(UndeliveredError, producer.publish, TOPIC, ["one", "x" * 2_000_000, "three"])

        self.assertEqual([b"one", b"three"], [value for _, value in self.log()])
        self.assertEqual([1], [delivery.index for delivery in error.report.failed])
        self.assertEqual(0, producer.publish(TOPIC, "four"))

    def test_queued_messages_are_counted_and_arrive_once(self):
        self.memory.broker.inject("produce", Delay(1.0), count=2)
        producer = self.producer()

        self.assertEqual(2, producer.publish(TOPIC, ["one", "two"], timeout=0))

        producer.close(5)
        self.assertEqual([b"one", b"two"], [value for _, value in self.log()])

    def test_failed_messages_are_raised_and_can_be_retried(self):
        self.memory.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        producer = self.producer()

        error = self.assertRaises(UndeliveredError, producer.publish, TOPIC, ["one"])

        self.assertEqual(1, len(error.report.failed))
        self.assertEqual(0, producer.retry(error.report))
        self.assertEqual([(None, b"one")], self.log())

    def test_an_accepted_message_that_fails_later_is_sent_again(self):
        self.memory.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS", seconds=1.0))
        producer = self.producer()
        self.assertEqual(1, producer.publish(TOPIC, ["one"], timeout=0))

        producer.close(5)

        self.assertEqual([(None, b"one")], self.log())

    def test_queued_messages_are_still_delivered_after_an_interrupt(self):
        self.memory.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS", seconds=1.0))
        producer = self.producer()
        producer.publish(TOPIC, ["one"], timeout=0)
        retry = producer._producer.retry

        def interrupted(report, timeout):
            producer._producer.retry = retry
            raise KeyboardInterrupt

        producer._producer.retry = interrupted
        self.assertRaises(KeyboardInterrupt, producer.publish, TOPIC, ["two"])

        producer.close(5)

        self.assertEqual([(None, b"one")], self.log())

    def test_a_close_waits_for_all_queued_messages_together(self):
        producer, clock = self.producer(), VirtualClock()
        producer.publish(TOPIC, ["one"])
        self.memory.broker.disconnect()
        for _ in range(3):
            self.assertEqual(1, producer.publish(TOPIC, ["two"], timeout=0))
        retry = producer._producer.retry

        def waiting(report, timeout):
            clock.advance(timeout)
            return retry(report, timeout=0)

        producer._clock, producer._producer.retry = clock, waiting
        producer.close(5)

        self.assertEqual(5, clock.monotonic())

    def test_options_of_librdkafka_are_accepted_under_their_names(self):
        producer = self.producer(**{"queue.buffering.max.messages": 1000, "linger.ms": 20, "compression.type": "zstd"})

        settings = producer._producer.settings
        self.assertEqual((1000, 20, "zstd"), (settings.budget_messages, settings.linger_ms, settings.compression))

    def test_options_that_would_undo_a_guarantee_are_refused(self):
        for config in ({"acks": 1}, {"enable.idempotence": False}, {"message.timeout.ms": 1000}):
            error = self.assertRaises(ConfigurationError, get_kafka_producer, URL, **config)
            self.assertIn(next(iter(config)), str(error))

    def test_credentials_need_tls_unless_an_argument_permits_plain_text(self):
        config = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "a"}
        config["sasl.password"] = "hush"

        error = self.assertRaises(ConfigurationError, get_kafka_producer, URL, **config)

        self.assertIn("SASL_PLAINTEXT", str(error))
        self.assertIn("set allow_insecure_credentials=true", str(error))
        self.assertNotIn("hush", str(error))
        connection = self.producer(**config, allow_insecure_credentials=True)._producer.settings.connection
        self.assertEqual("sasl_plaintext", connection.security["security.protocol"])


class ServiceConsumerTest(FactoryTestCase):
    def filled(self, *values: str) -> None:
        self.producer().publish(TOPIC, list(values), key="k")

    def test_a_message_has_the_methods_of_its_predecessor(self):
        self.filled("one")

        message = next(self.consumer())

        kind, milliseconds = message.timestamp()
        self.assertEqual((1, True), (kind, milliseconds > 0))
        self.assertEqual((None, 3), (message.error(), len(message)))
        self.assertEqual([MESSAGE_ID_HEADER], [name for name, _ in message.headers()])

    def test_iterating_yields_messages(self):
        self.filled("one", "two")
        consumer = self.consumer()

        message = next(consumer)

        self.assertEqual(
            (b"k", b"one", 0, 0, TOPIC),
            (message.key(), message.value(), message.offset(), message.partition(), message.topic()),
        )
        self.assertEqual(1, next(iter(consumer)).offset())

    def test_only_returned_messages_are_committed(self):
        self.filled("one", "two", "three")
        consumer = self.consumer()
        for _, message in zip(range(2), consumer, strict=False):
            last = message

        consumer.commit()

        self.assertEqual(1, last.offset())
        self.assertEqual({TopicPartition(TOPIC, 0): 2}, self.memory.broker.committed("group"))

    def test_nothing_is_committed_without_a_call(self):
        self.filled("one", "two")
        with self.consumer() as consumer:
            next(consumer)
            next(consumer)

        self.assertEqual({TopicPartition(TOPIC, 0): 0}, self.memory.broker.committed("group"))

    def test_the_commit_callback_is_called_after_the_interval(self):
        clock = VirtualClock()
        memory = self.useFixture(MemoryKafka(clock=clock))
        memory.broker.create_topic(TOPIC, 1)
        self.filled("one", "two", "three")
        called = []
        consumer = self.consumer(commit_callback=lambda: called.append(True), max_commit_interval=30)
        consumer._clock = clock
        consumer._committed_at = clock.monotonic()
        next(consumer)
        self.assertEqual([], called)

        clock.advance(31)
        next(consumer)
        next(consumer)

        self.assertEqual([True], called)

    def test_the_repartition_callback_can_commit_before_partitions_are_revoked(self):
        self.filled("one", "two")
        reported = []

        def before_they_go(consumer, partitions):
            reported.extend(partitions)
            consumer.commit()

        consumer = get_kafka_consumer(URL, "group", TOPIC, repartition_callback=before_they_go)
        next(consumer)

        consumer.close()

        self.assertEqual([TopicPartition(TOPIC, 0)], reported)
        self.assertEqual({TopicPartition(TOPIC, 0): 1}, self.memory.broker.committed("group"))

    def with_an_error(self, name):
        """Return a consumer whose first poll has this error of the client."""
        self.filled("one")
        consumer = self.consumer()
        poll = consumer._consumer.poll

        def once(*arguments):
            consumer._consumer.poll = poll
            return Batch(errors=(TransportError("of a test", name=name),))

        consumer._consumer.poll = once
        return consumer

    def test_a_consumer_waits_for_a_missing_topic(self):
        log = self.useFixture(fixtures.FakeLogger())

        self.assertEqual(b"one", next(self.with_an_error("UNKNOWN_TOPIC_OR_PART")).value())

        self.assertIn("create it", log.output)

    def test_a_missing_permission_is_raised_immediately(self):
        consumer = self.with_an_error("TOPIC_AUTHORIZATION_FAILED")

        self.assertRaises(TransportError, next, consumer)

    def test_members_with_the_version_3_client_can_join_its_group(self):
        settings = self.consumer()._consumer.settings

        # The first of librdkafka's default strategies, range,roundrobin, which the old client did not change.
        self.assertEqual(("classic", "range", 10), (
            settings.group_protocol, settings.assignment_strategy, settings.session_timeout_seconds
        ))  # fmt: skip

    def test_a_refused_commit_is_raised(self):
        self.filled("one")
        consumer = self.consumer()
        next(consumer)
        self.memory.broker.inject("commit", Fail("GROUP_AUTHORIZATION_FAILED"))

        self.assertRaises(TransportError, consumer.commit)


class SlowHandlerTest(FactoryTestCase):
    """A group whose members must poll every 12 s, and a slow handler."""

    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.memory = self.useFixture(MemoryKafka(clock=self.clock))
        self.memory.broker.create_topic(TOPIC, 2)

    def slow_consumer(self, **named):
        options = {"repartition_callback": None, "commit_callback": None, "max_commit_interval": 30.0} | named
        settings = self.memory.consumer_settings(TOPIC, "group", max_poll_interval_seconds=12.0)
        consumer = ServiceConsumer(
            lambda listener: plugins.memory_consumer(settings, listener=listener), clock=self.clock, **options
        )
        self.addCleanup(consumer.close)
        return consumer

    def filled(self, count):
        with self.memory.producer() as producer:
            records = [Record(b"%d" % number, partition=number % 2) for number in range(count)]
            producer.publish(TOPIC, records).raise_for_undelivered()

    def handled(self, consumer, count, seconds, callback=lambda: None):
        """Return the values in order; handling each value takes this long, and each is committed."""
        values = []
        for message in itertools.islice(consumer, count):
            self.clock.advance(seconds)
            values.append(int(message.value()))
            callback()
        return values

    def test_every_message_is_read_once_and_every_commit_is_stored(self):
        self.filled(30)
        consumer = self.slow_consumer()

        values = self.handled(consumer, 30, 1.0, consumer.commit)

        self.assertEqual(list(range(30)), sorted(values))
        self.assertEqual({TopicPartition(TOPIC, 0): 15, TopicPartition(TOPIC, 1): 15}, self.committed())

    def test_one_message_may_take_nearly_the_whole_interval(self):
        self.filled(4)
        consumer = self.slow_consumer()

        self.assertEqual([0, 1, 2, 3], sorted(self.handled(consumer, 4, 10.0, consumer.commit)))

    def test_a_slow_commit_callback_does_not_delay_messages(self):
        self.filled(3)
        consumer = self.slow_consumer(commit_callback=lambda: self.clock.advance(2.0), max_commit_interval=0.0)

        self.assertEqual([0, 1, 2], sorted(self.handled(consumer, 3, 2.0)))

    def committed(self):
        return self.memory.broker.committed("group")

    def test_an_unknown_commit_within_a_poll_does_not_end_the_reading(self):
        self.filled(2)
        consumer = self.slow_consumer()
        poll = consumer._consumer.poll

        def once(*arguments):
            consumer._consumer.poll = poll
            return Batch(errors=(CommitUnknown("no response"),))

        consumer._consumer.poll = once

        self.assertIn(next(consumer).value(), (b"0", b"1"))


class FactoryArgumentsTest(base.BaseTestCase):
    def test_the_legacy_client_is_refused_with_the_remedy(self):
        for make in (
            lambda: get_kafka_producer(["kafka:9092"], use_legacy_client=True),
            lambda: get_kafka_producer(["kafka:9092"], True),
            lambda: get_kafka_consumer(["kafka:9092"], "group", TOPIC, ["zookeeper:2181"], "/path", True),
        ):
            error = self.assertRaises(ConfigurationError, make)
            self.assertIn("omit the argument", str(error))
            self.assertIn("offsets reset --to-datetime", str(error))

    def test_brokers_are_checked(self):
        self.assertRaises(ConfigurationError, get_kafka_producer, [])
        self.assertRaises(ConfigurationError, get_kafka_consumer, ["kafka:none"], "group", TOPIC)

    def test_values_keep_the_bounds_of_the_options_that_they_replace(self):
        for name, value in (
            ("linger.ms", "soon"),
            ("queue.buffering.max.messages", 0),
            ("compression.type", "rar"),
            ("security.protocol", "tls"),
        ):
            error = self.assertRaises(ConfigurationError, get_kafka_producer, URL, **{name: value})
            self.assertIn(f"{name} in the arguments of the client factory", str(error))
