# SPDX-License-Identifier: Apache-2.0
"""Producers, consumers and serializers by name, on the memory driver."""

from __future__ import annotations

import subprocess
import sys

import fixtures

from monasca_common import kafka
from monasca_common.kafka import plugins
from monasca_common.kafka.errors import ConfigurationError, WrongType
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.serialization.base import RawSerializer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport import native
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

TOPIC = "metrics"


class PluginsTest(ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryKafka())
        self.memory.broker.create_topic(TOPIC, 1)

    def on_memory(self, *lines: str, **groups: str):
        brokers = f"bootstrap_servers = {self.memory.bootstrap_servers}"
        sections = ["[kafka]", brokers, "driver = memory", *lines]
        for name, text in groups.items():
            sections += [f"[{name}]", text]
        return self.configured("\n".join(sections) + "\n")

    def test_a_consumer_reads_the_messages_of_a_producer_of_the_same_configuration(self):
        conf = self.on_memory()

        with kafka.load_producer(conf) as producer, kafka.load_consumer(conf, "kafka_metrics") as consumer:
            producer.publish(TOPIC, [b"one", b"two"]).raise_for_undelivered()
            self.assertEqual([b"one", b"two"], [message.value for message in consumer.poll()])

    def test_a_consumer_reads_chosen_partitions(self):
        conf = self.on_memory()
        chosen = [TopicPartition(TOPIC, 0)]

        with kafka.load_consumer(conf, "kafka_metrics", partitions=chosen) as consumer:
            consumer.poll(timeout=0)
            self.assertEqual(set(chosen), consumer.assignment())

    def test_a_consumer_calls_its_listener(self):
        reported = []

        class Listener(kafka.RebalanceListener):
            def assigned(self, partitions):
                reported.extend(partitions)

        with kafka.load_consumer(self.on_memory(), "kafka_metrics", listener=Listener()) as consumer:
            consumer.poll(timeout=0)

        self.assertEqual([TopicPartition(TOPIC, 0)], reported)

    def test_an_unknown_driver_is_refused_with_the_known_ones_and_without_a_log_line(self):
        logged = self.useFixture(fixtures.FakeLogger())
        conf = self.with_kafka("driver = rabbit")

        for expected in (
            self.refused(kafka.load_producer, conf),
            self.refused(kafka.load_consumer, conf, "kafka_metrics"),
        ):
            self.assertIn("driver=rabbit is not known: use one of confluent, kafka, memory, native", expected)
        self.assertEqual("", logged.output)

    def test_an_option_that_librdkafka_refuses_is_reported_without_its_value(self):
        conf = self.with_kafka("producer_options = no.such=hush", "consumer_options = socket.keepalive.enable=hush")

        for option, expected in (
            ("no.such", self.refused(kafka.load_producer, conf)),
            ("socket.keepalive.enable", self.refused(kafka.load_consumer, conf, "kafka_metrics")),
        ):
            self.assertIn(f'"{option}"', expected)
            self.assertNotIn("hush", expected)

    def test_an_unknown_serializer_is_refused_with_the_known_ones(self):
        self.assertIn("avro, json, json-schema, msgspec, protobuf, raw", self.refused(kafka.load_serializer, "pickle"))

    def test_a_dotted_path_is_not_a_name(self):
        self.refused(kafka.load_serializer, "monasca_common.kafka.serialization.json:JsonSerializer")

    def test_serializers_are_loaded_by_name(self):
        self.assertEqual("application/json", kafka.load_serializer("json").content_type)
        self.assertEqual("application/octet-stream", kafka.load_serializer("raw").content_type)
        self.assertEqual([1], kafka.load_serializer("msgspec", type=list[int]).loads(b"[1]"))

    def test_a_missing_type_and_a_type_that_a_serializer_does_not_support_are_refused(self):
        self.assertIn("pass type= to load_serializer", self.refused(kafka.load_serializer, "msgspec"))
        self.assertIn("serializer=json has no type", self.refused(lambda: kafka.load_serializer("json", type=int)))

    def test_a_serializer_with_options_receives_the_configuration(self):
        class Configured(RawSerializer):
            def __init__(self, conf):
                self.conf = conf

        self.useFixture(fixtures.MockPatch("monasca_common.kafka.plugins.entry_point", return_value=Configured))
        conf = self.on_memory()

        self.assertIs(conf, kafka.load_serializer("configured", conf=conf).conf)
        self.assertIn("needs conf", self.refused(kafka.load_serializer, "configured"))

    def test_a_serializer_without_options_does_not_receive_the_configuration(self):
        self.assertEqual("application/json", kafka.load_serializer("json", conf=self.on_memory()).content_type)

    def test_the_memory_driver_has_no_admin(self):
        self.assertIn("driver=memory", self.refused(kafka.load_admin, self.on_memory()))

    def test_the_dead_letters_of_a_consumer_go_to_its_servers(self):
        conf = self.configured(
            f"[kafka]\ndriver = memory\n[kafka_metrics]\nbootstrap_servers = {self.memory.bootstrap_servers}\n"
        )

        with kafka.load_producer(conf, "kafka_metrics") as producer:
            self.assertEqual(self.memory.bootstrap_servers, producer.settings.connection.bootstrap_servers)

    def test_the_drivers_of_the_entry_points_exist(self):
        for namespace in (plugins.PRODUCERS, plugins.CONSUMERS):
            for name in ("confluent", "kafka", "memory", "native"):
                self.assertTrue(callable(plugins.entry_point(namespace, name, option="driver")))

    def test_the_driver_kafka_is_native_if_the_native_client_supports_the_settings(self):
        def opened(driver, **options):
            settings = ProducerSettings(ConnectionSettings("127.0.0.1:1", driver=driver), **options)
            opening = self.useFixture(fixtures.MockPatch("monasca_common.kafka.plugins.KafkaProducer")).mock
            plugins.open_producer(settings)
            transport = opening.call_args.args[1](1000, self.fail)
            transport.close(1.0)
            return type(transport).__name__

        self.assertEqual("NativeProducer", opened("kafka"))
        self.assertEqual("NativeProducer", opened("native"))
        self.assertEqual("ConfluentProducer", opened("confluent"))
        self.assertEqual("ConfluentProducer", opened("kafka", transactional_id="t"))
        error = self.assertRaises(ConfigurationError, opened, "native", transactional_id="t")
        self.assertIn("transactions: use driver=kafka", str(error))
        self.useFixture(fixtures.MockPatchObject(native, "reason", return_value="there is no compiler"))
        with self.assertLogs("monasca_common.kafka.plugins", "INFO") as logs:
            self.assertEqual("ConfluentProducer", opened("kafka"))
        self.assertIn("confluent instead of native, because there is no compiler", logs.output[0])
        self.assertRaises(ConfigurationError, opened, "native")

    def test_the_driver_kafka_consumes_natively_if_the_extension_is_built(self):
        def opened(driver):
            settings = ConsumerSettings(ConnectionSettings("127.0.0.1:1", driver=driver), ("t",), "g")
            opening = self.useFixture(fixtures.MockPatch("monasca_common.kafka.plugins.KafkaConsumer")).mock
            plugins.open_consumer(settings)
            transport = opening.call_args.args[1]
            transport.close()
            return type(transport).__name__, transport.driver

        self.assertEqual(("NativeConsumer", "native"), opened("kafka"))
        self.assertEqual(("NativeConsumer", "native"), opened("native"))
        self.assertEqual(("ConfluentConsumer", "confluent"), opened("confluent"))
        self.useFixture(fixtures.MockPatchObject(native, "reason", return_value="there is no compiler"))
        with self.assertLogs("monasca_common.kafka.plugins", "INFO") as logs:
            self.assertEqual(("ConfluentConsumer", "confluent"), opened("kafka"))
        self.assertIn("confluent instead of native, because there is no compiler", logs.output[0])
        self.assertRaises(ConfigurationError, opened, "native")


class PackageTest(ConfigurationTestCase):
    def test_every_public_name_exists_and_is_exported(self):
        self.assertEqual(sorted(kafka.__all__), list(kafka.__all__))
        for name in kafka.__all__:
            self.assertIsNotNone(getattr(kafka, name))
        for name in (
            "Record",
            "Message",
            "Batch",
            "TopicPartition",
            "KafkaProducer",
            "KafkaConsumer",
            "Processor",
            "RetryPolicy",
            "RebalanceListener",
            "load_producer",
            "load_consumer",
            "load_admin",
            "load_serializer",
        ):
            self.assertIn(name, kafka.__all__)

    def test_topics_that_are_one_string_are_a_wrong_type(self):
        error = self.assertRaises(WrongType, ConsumerSettings, ConnectionSettings("127.0.0.1:1"), "metrics", "g")

        self.assertEqual("topics is a tuple of names, not str: write topics=('metrics',)", str(error))

    def test_every_error_is_public(self):
        for name, value in vars(kafka.errors).items():
            if isinstance(value, type) and issubclass(value, Exception):
                self.assertIn(name, kafka.__all__)

    # Rule 73
    def test_importing_the_package_imports_no_client(self):
        code = "import sys, monasca_common.kafka; sys.exit('confluent_kafka' in sys.modules)"

        self.assertEqual(0, subprocess.run([sys.executable, "-c", code], timeout=60).returncode)
