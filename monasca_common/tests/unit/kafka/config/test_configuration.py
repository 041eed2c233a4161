# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import os
import pathlib
from unittest import mock

import fixtures
from oslo_config import cfg, generator

from monasca_common.kafka.config import config_file, groups
from monasca_common.kafka.config.configuration import connection_settings, consumer_settings, producer_settings
from monasca_common.kafka.config.groups import CONSUMER_GROUPS
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings, start_ms
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class ProducerConfigurationTest(ConfigurationTestCase):
    def test_settings_with_only_brokers_have_the_defaults(self):
        settings = producer_settings(self.with_kafka())

        self.assertEqual("kafka.example.org:9092", settings.connection.bootstrap_servers)
        plain = ProducerSettings(ConnectionSettings("kafka.example.org:9092", security=settings.connection.security))
        self.assertEqual(plain, settings)

    def test_the_settings_contain_the_values(self):
        settings = producer_settings(
            self.with_kafka(
                "compression = zstd",
                "linger_ms = 20",
                "publish_timeout_seconds = 2.5",
                "budget_messages = 7",
                "transactional_id = billing-1",
                "topics_without_message_id = metrics, raw",
                "producer_options = socket.keepalive.enable=false",
                "producer_options = sticky.partitioning.linger.ms=7",
            )
        )

        self.assertEqual(
            ("zstd", 20, 2.5, 7),
            (settings.compression, settings.linger_ms, settings.publish_timeout_seconds, settings.budget_messages),
        )
        self.assertEqual("billing-1", settings.transactional_id)
        self.assertEqual({"metrics", "raw"}, settings.topics_without_message_id)
        self.assertEqual(
            {"socket.keepalive.enable": "false", "sticky.partitioning.linger.ms": "7"}, dict(settings.options)
        )

    def test_brokers_have_no_default(self):
        refusal = self.refused(producer_settings, self.configured("[kafka]\n"))

        self.assertIn("bootstrap_servers in group [kafka] is not set", refusal)

    def test_brokers_are_host_and_port_without_a_protocol(self):
        for brokers in ("SSL://kafka:9093", "kafka:port", "kafka:70000", "kafka:0", "two words:9092"):
            conf = self.configured(f"[kafka]\nbootstrap_servers = {brokers}\n")
            self.assertIn("bootstrap_servers", self.refused(producer_settings, conf))

    def test_brokers_may_be_addresses(self):
        conf = self.configured("[kafka]\nbootstrap_servers = [2001:db8::1]:9092, 192.0.2.1:9092, kafka\n")

        self.assertEqual("[2001:db8::1]:9092,192.0.2.1:9092,kafka", connection_settings(conf).bootstrap_servers)

    def test_a_value_out_of_bounds_names_option_and_group(self):
        for line in ("linger_ms = 5000", "budget_messages = 0", "compression = rar", "publish_timeout_seconds = soon"):
            refusal = self.refused(producer_settings, self.with_kafka(line))
            self.assertIn(f"{line.split()[0]} in group [kafka]", refusal)

    def test_a_refused_value_is_reported_with_its_rule_and_its_file(self):
        path = self.path_of("[kafka]\nbootstrap_servers = kafka1:9092\nlinger_ms = 5000\n")
        refusal = self.refused(producer_settings, self.read(path))
        self.assertTrue(
            refusal.endswith(f"correct it: Should be less than or equal to 1000 (linger_ms in {path})"), refusal
        )

    def test_reading_before_the_files_are_parsed_is_an_error(self):
        refusal = self.refused(producer_settings, cfg.ConfigOpts())

        self.assertIn("call conf(", refusal)

    def test_an_option_of_the_service_under_one_of_our_names_is_an_error(self):
        conf = self.with_kafka()
        conf.register_opts([cfg.IntOpt("linger_ms")], group="kafka")

        self.assertIn("'linger_ms' in group [kafka] is registered twice", self.refused(producer_settings, conf))

    def test_reading_twice_is_not_an_error(self):
        conf = self.with_kafka(kafka_metrics="topic = metrics")

        self.assertEqual(producer_settings(conf), producer_settings(conf))
        self.assertEqual(consumer_settings(conf, "kafka_metrics"), consumer_settings(conf, "kafka_metrics"))


class ConsumerConfigurationTest(ConfigurationTestCase):
    def test_a_consumer_inherits_options_that_it_does_not_set(self):
        conf = self.with_kafka(
            "client_id = mine", "batch_size = 7", "start = latest", kafka_metrics="batch_size = 8\ntopic = a,b\n"
        )

        settings = consumer_settings(conf, "kafka_metrics")

        self.assertEqual("mine", settings.connection.client_id)
        self.assertEqual((8, "latest", ("a", "b")), (settings.batch_size, settings.start, settings.topics))

    def test_a_known_consumer_needs_no_options_of_its_own(self):
        settings = consumer_settings(self.with_kafka(), "kafka_metrics")

        self.assertEqual((("metrics",), "1_metrics"), (settings.topics, settings.group_id))
        self.assertEqual(
            ConsumerSettings(settings.connection, ("metrics",), "1_metrics"),
            settings,
        )

    def test_any_other_group_also_configures_a_consumer(self):
        conf = self.with_kafka(billing="topic = usage\ngroup_id = billing\n")

        self.assertEqual(("usage",), consumer_settings(conf, "billing").topics)

    def test_a_consumer_needs_topic_and_group_id(self):
        self.assertIn("topic in group [billing]", self.refused(consumer_settings, self.with_kafka(), "billing"))
        conf = self.with_kafka(billing="topic = usage")
        self.assertIn("group_id in group [billing]", self.refused(consumer_settings, conf, "billing"))

    def test_the_kafka_group_is_not_a_consumer(self):
        self.assertIn("[kafka] describes no consumer", self.refused(consumer_settings, self.with_kafka(), "kafka"))

    def test_a_topic_has_a_legal_name(self):
        for topic in ("^metrics.*", "a b", "."):
            conf = self.with_kafka(kafka_metrics=f"topic = {topic}")
            self.assertIn("topic in group [kafka_metrics]", self.refused(consumer_settings, conf, "kafka_metrics"))

    def test_a_consumer_does_not_read_its_own_dead_letters(self):
        for text in ("topic = a,b\ndead_letter_topic = b", "topic = a,a.dlq"):
            refusal = self.refused(consumer_settings, self.with_kafka(kafka_metrics=text), "kafka_metrics")
            self.assertIn("dead_letter_topic in group [kafka_metrics] is read by the same consumer", refusal)

    def test_dead_letters_go_to_the_servers_of_their_consumer(self):
        conf = self.configured("[kafka_metrics]\nbootstrap_servers = other:9092\n")

        self.assertEqual("other:9092", producer_settings(conf, "kafka_metrics").connection.bootstrap_servers)

    def test_a_start_may_be_a_time(self):
        for given in ("2026-01-31T06:00:00Z", "2026-01-31T06:00:00", "2026-01-31T08:00:00+02:00"):
            conf = self.with_kafka(f"start = {given}")
            self.assertEqual(1_769_839_200_000, start_ms(consumer_settings(conf, "kafka_metrics").start))
        self.assertEqual("latest", consumer_settings(self.with_kafka("start = Latest"), "kafka_metrics").start)

    def test_a_start_that_is_not_a_time_is_refused(self):
        refusal = self.refused(consumer_settings, self.with_kafka("start = yesterday"), "kafka_metrics")

        self.assertIn("start in group [kafka_metrics] is 'yesterday'", refusal)

    def test_options_that_brokers_decide_are_refused_with_kip_848(self):
        for line in ("assignment_strategy = range", "session_timeout_seconds = 10"):
            conf = self.with_kafka("group_protocol = consumer", kafka_metrics=line)
            refusal = self.refused(consumer_settings, conf, "kafka_metrics")
            self.assertIn(f"{line.split()[0]} in group [kafka_metrics]", refusal)

    def test_a_session_may_not_outlast_the_poll_interval(self):
        conf = self.with_kafka("session_timeout_seconds = 60", "max_poll_interval_seconds = 30")

        self.assertIn("session_timeout_seconds", self.refused(consumer_settings, conf, "kafka_metrics"))

    def test_a_batch_may_not_take_as_long_as_the_poll_interval(self):
        conf = self.with_kafka("max_wait_time_seconds = 30", "max_poll_interval_seconds = 30")

        self.assertIn("max_wait_time_seconds", self.refused(consumer_settings, conf, "kafka_metrics"))

    def test_further_options_of_a_consumer_are_added_to_common_options(self):
        conf = self.with_kafka(
            "consumer_options = fetch.min.bytes=1",
            "consumer_options = fetch.wait.max.ms=100",
            kafka_metrics="consumer_options = fetch.min.bytes=2",
        )

        options_ = dict(consumer_settings(conf, "kafka_metrics").options)
        self.assertEqual({"fetch.min.bytes": "2", "fetch.wait.max.ms": "100"}, options_)


class OptionNamesTest(ConfigurationTestCase):
    # Rule 72
    def test_a_misspelt_option_is_an_error_that_suggests_the_right_name(self):
        refusal = self.refused(producer_settings, self.with_kafka("linger_mss = 3"))

        self.assertIn("'linger_mss'", refusal)
        self.assertIn("did you mean 'linger_ms'?", refusal)

    def test_a_misspelt_option_of_a_consumer_is_an_error(self):
        conf = self.with_kafka(kafka_metrics="batch_sise = 3")

        self.assertIn(
            "[kafka_metrics] has an unknown option 'batch_sise'", self.refused(consumer_settings, conf, "kafka_metrics")
        )

    def test_a_misspelt_variable_of_the_environment_is_an_error(self):
        with mock.patch.dict(os.environ, {"OS_KAFKA__LINGERMS": "3"}):
            self.assertIn("'lingerms'", self.refused(producer_settings, self.with_kafka()))

    def test_an_old_name_in_the_environment_is_an_error_because_it_would_be_ignored(self):
        with mock.patch.dict(os.environ, {"OS_KAFKA__URI": "kafka:9092"}):
            self.assertIn("OS_KAFKA__URI", self.refused(producer_settings, self.with_kafka()))

    def test_a_group_may_be_written_in_capitals(self):
        conf = self.with_kafka(Billing="topic = usage\ngroup_id = billing\nbatch_sise = 1\n")

        self.assertIn("'batch_sise'", self.refused(consumer_settings, conf, "Billing"))

    def test_environment_variables_configure_options(self):
        with mock.patch.dict(os.environ, {"OS_KAFKA__LINGER_MS": "33"}):
            self.assertEqual(33, producer_settings(self.with_kafka()).linger_ms)

    def test_options_that_the_service_registered_are_known(self):
        conf = self.with_kafka("shards = 3")
        conf.register_opts([cfg.IntOpt("shards")], group="kafka")

        self.assertIsNotNone(producer_settings(conf))

    def test_drivers_cannot_differ_within_one_configuration(self):
        conf = self.with_kafka("driver = kafka", kafka_metrics="driver = memory")

        refusal = self.refused(consumer_settings, conf, "kafka_metrics")

        self.assertIn("[kafka_metrics] has an unknown option 'driver'", refusal)


class OptionsTest(ConfigurationTestCase):
    def test_every_group_is_listed_with_its_options(self):
        listed = dict(groups.list_opts())

        self.assertEqual(["kafka", *groups.CONSUMER_GROUPS], list(listed))
        for group in groups.CONSUMER_GROUPS:
            self.assertIn("topic", [option.name for option in listed[group]])

    def test_every_option_has_help(self):
        for group, listed in groups.list_opts():
            for option in listed:
                self.assertTrue(option.help, f"[{group}] {option.name}")

    def test_inherited_options_of_a_consumer_have_no_default(self):
        inherited = {option.name for option in groups.group_of("kafka").oslo_options()}
        for option in groups.group_of("kafka_metrics").oslo_options():
            if option.name in inherited:
                self.assertIsNone(option.default, option.name)

    # Rule 69
    def test_no_secret_has_bounds_because_their_errors_would_print_it(self):
        for _, listed in groups.list_opts():
            for option in listed:
                if option.secret:
                    bounds = [
                        getattr(option.type, name, None) for name in ("min", "max", "choices", "regex", "max_length")
                    ]
                    self.assertFalse(any(bounds), option.name)

    def test_every_option_that_names_a_password_is_secret(self):
        for _, listed in groups.list_opts():
            for option in listed:
                if "password" in option.name or option.name.endswith("_options"):
                    self.assertTrue(option.secret, option.name)


ETC = pathlib.Path(__file__).parents[5] / "etc"
SAMPLE = ETC / "monasca-common.conf.sample"


class SampleConfigurationTest(ConfigurationTestCase):
    def test_the_sample_has_the_declared_options(self):
        conf = cfg.ConfigOpts()
        generator.register_cli_opts(conf)
        conf(["--config-file", str(ETC / "config-generator.conf")])
        written = io.StringIO()

        generator.generate(conf, output_file=written)

        self.assertEqual(
            SAMPLE.read_text(),
            written.getvalue(),
            "run: oslo-config-generator --config-file etc/config-generator.conf",
        )

    def test_the_sample_configures_everything_once_it_has_brokers(self):
        text = SAMPLE.read_text().replace("#bootstrap_servers = kafka1", "bootstrap_servers = kafka1", 1)

        conf = self.read(self.path_of(text))

        self.assertIsNotNone(producer_settings(conf))
        for group in CONSUMER_GROUPS:
            self.assertIsNotNone(consumer_settings(conf, group))


class ReadTest(ConfigurationTestCase):
    def refusal(self, path):
        return self.refused(config_file.read, cfg.ConfigOpts(), ["--config-file", path], project="tests")

    def test_a_line_that_is_not_an_option_is_reported_by_its_number_and_not_quoted(self):
        path = self.path_of("[kafka]\nsasl_password pa55word\n")
        reported = self.refusal(path)
        self.assertIn(f"line 2 of {path} is neither", reported)
        self.assertNotIn("pa55word", reported)

    def test_a_missing_file_is_named(self):
        reported = self.refusal("/nowhere.conf")
        self.assertIn("correct it or --config-file: Failed to find some config files: /nowhere.conf", reported)

    def test_a_folder_instead_of_a_file_is_named(self):
        folder = self.useFixture(fixtures.TempDir()).path
        self.assertIn(f"Is a directory: '{folder}'", self.refusal(folder))
