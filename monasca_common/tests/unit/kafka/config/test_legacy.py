# SPDX-License-Identifier: Apache-2.0
"""Configuration files of the old services are read unchanged, and removed options are refused."""

from __future__ import annotations

import importlib
import pathlib
from pathlib import Path

import fixtures

from monasca_common.api.settings import api_settings
from monasca_common.cli.configuration import own_options
from monasca_common.kafka.config import OptionGroup, legacy
from monasca_common.kafka.config.configuration import consumer_settings, producer_settings
from monasca_common.kafka.config.groups import group_of
from monasca_common.kafka.transport.librdkafka_options import consumer_options
from monasca_common.pipeline.archive.settings import archive_settings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

SAMPLES = pathlib.Path(__file__).parent / "samples"


class LegacyFilesTest(ConfigurationTestCase):
    def sample(self, service: str):
        return self.read(str(SAMPLES / f"{service}.conf"))

    def test_a_persister_has_its_brokers_in_the_groups_of_its_consumers(self):
        conf = self.sample("persister")

        metrics = consumer_settings(conf, "kafka_metrics")

        self.assertEqual("kafka1.example.org:9092,kafka2.example.org:9092", metrics.connection.bootstrap_servers)
        self.assertEqual("persister-client", metrics.connection.client_id)
        self.assertEqual((("metrics",), "1_metrics"), (metrics.topics, metrics.group_id))
        self.assertEqual((30_000, 20.0), (metrics.batch_size, metrics.max_wait_time_seconds))

    def test_a_consumer_of_a_persister_overrides_common_options(self):
        history = consumer_settings(self.sample("persister"), "kafka_alarm_history")

        self.assertEqual((1000, 5.0), (history.batch_size, history.max_wait_time_seconds))
        self.assertEqual(("alarm-state-transitions",), history.topics)

    def test_dead_letters_of_a_persister_go_to_the_brokers_of_its_consumer(self):
        settings = producer_settings(self.sample("persister"), "kafka_alarm_history")

        self.assertEqual("kafka1.example.org:9092", settings.connection.bootstrap_servers)

    def test_a_producer_of_a_persister_without_a_consumer_has_no_brokers(self):
        self.assertIn("bootstrap_servers in group [kafka]", self.refused(producer_settings, self.sample("persister")))

    def test_the_fetch_size_of_version_3_does_not_reach_the_client(self):
        settings = consumer_settings(self.sample("persister"), "kafka_metrics")

        self.assertNotIn("4096", map(str, consumer_options(settings).values()))

    def test_a_notification_engine_reads_alarms(self):
        conf = self.sample("notification")

        alarms = consumer_settings(conf, "kafka_notifications")

        self.assertEqual("kafka1.example.org:9092,kafka2.example.org:9092", alarms.connection.bootstrap_servers)
        self.assertEqual((("alarm-state-transitions",), "notification-engine"), (alarms.topics, alarms.group_id))
        self.assertIsNotNone(producer_settings(conf))

    def test_the_old_file_of_an_api_configures_its_producer(self):
        settings = producer_settings(self.sample("api"))

        self.assertEqual("kafka1.example.org:9092", settings.connection.bootstrap_servers)
        self.assertEqual(100_000, settings.budget_messages)

    def test_each_option_without_effect_is_reported_with_its_reason(self):
        with self.assertLogs("monasca_common.kafka", "WARNING") as logs:
            consumer_settings(self.sample("persister"), "kafka_metrics")

        reported = "\n".join(logs.output)
        for name in (
            "kafka] consumer_id",
            "kafka] fetch_size_bytes",
            "kafka] buffer_size",
            "kafka] max_buffer_size",
            "kafka] legacy_kafka_client_enabled",
            "kafka_metrics] zookeeper_path",
            "kafka_metrics] partitions",
        ):
            self.assertIn(f"[{name} is ignored: ", reported)
        self.assertNotIn("num_processors", reported)
        self.assertNotIn("enabled is", reported.replace("legacy_kafka_client_enabled is", ""))

    def test_the_ignored_options_of_an_api_are_reported(self):
        with self.assertLogs("monasca_common.kafka", "WARNING") as logs:
            producer_settings(self.sample("api"))

        self.assertEqual(
            [
                "ack_time",
                "async",
                "auto_commit",
                "compact",
                "drop_data",
                "is_async",
                "legacy_kafka_client_enabled",
                "max_retry",
                "partitions",
                "queue_buffering_max_messages",
                "wait_time",
            ],
            sorted(record.getMessage().split()[1] for record in logs.records),
        )

    def test_old_names_are_logged_once_even_if_files_are_read_again(self):
        conf = self.sample("persister")
        with self.assertLogs(level="WARNING") as first:
            consumer_settings(conf, "kafka_metrics")
        logged = [record.getMessage() for record in first.records]
        self.assertEqual(sorted(set(logged)), sorted(logged))
        self.assertIn("uri", " ".join(logged))

        with self.assertNoLogs(level="WARNING"):
            consumer_settings(conf, "kafka_metrics")
            producer_settings(conf, "kafka_metrics")
            conf.reload_config_files()
            consumer_settings(conf, "kafka_metrics")
            consumer_settings(self.sample("persister"), "kafka_metrics")

    def test_an_old_option_of_a_producer_is_unknown_to_a_consumer(self):
        conf = self.with_kafka(kafka_metrics="ack_time = 3")

        self.assertIn("'ack_time'", self.refused(consumer_settings, conf, "kafka_metrics"))


class LegacyTableTest(ConfigurationTestCase):
    def test_no_current_option_is_in_the_table_of_old_options(self):
        today = {option.name for group in ("kafka", "kafka_metrics") for option in group_of(group).options}

        self.assertEqual(set(), today & {old.name for old in legacy.OLD_OPTIONS})

    def test_each_name_has_one_row(self):
        names = [old.name for old in legacy.OLD_OPTIONS]

        self.assertEqual(sorted(set(names)), sorted(names))

    def test_values_of_renamed_options_are_used(self):
        deprecated = {
            (former.rpartition(".")[0] or group, former.rpartition(".")[2])
            for group in ("kafka", "kafka_notifications")
            for option in group_of(group).options
            for former in option.old_names
        }
        for old in legacy.OLD_OPTIONS:
            if old.action is legacy.Action.RENAMED:
                self.assertIn(("kafka", old.name), deprecated)


ROOT = Path(__file__).parents[5]
DECISION = "a gzip body may expand to 100 times its size, within max_body_bytes"
PACKAGES = (
    "api",
    "audit",
    "notification",
    "operations",
    "operations.dashboard",
    "operations.mirror",
    "persister",
    "pipeline",
    "pipeline.archive",
    "pipeline.replay",
    "storage",
)


def removed():
    """Return every removed name with its group."""
    groups = [group_of("kafka")]
    for package in PACKAGES:
        module = importlib.import_module(f"monasca_common.{package}.settings")
        declared = [getattr(value, "own", value) for value in vars(module).values()]
        groups += [each for each in declared if isinstance(each, OptionGroup)]
    return {(group.name, name) for group in groups for name in group.removed}


class RemovedOptionsTest(ConfigurationTestCase):
    def test_one_error_lists_all_removed_options_of_a_group_and_their_replacements(self):
        conf = self.with_kafka(api="max_gzip_ratio = 50\npage_limit = 9\n")
        self.assertEqual(
            f"max_gzip_ratio in group [api] has no effect: {DECISION}; page_limit in group [api] has no effect: "
            "a response has at most 10,000 elements; clients can request fewer with the parameter limit; remove them",
            self.refused(api_settings, conf),
        )

    def test_a_removed_name_in_the_environment_is_refused_as_in_a_file(self):
        self.useFixture(fixtures.EnvironmentVariable("OS_API__MAX_GZIP_RATIO", "50"))
        self.assertEqual(
            f"OS_API__MAX_GZIP_RATIO in the environment has no effect: {DECISION}; remove it",
            self.refused(api_settings, self.with_kafka()),
        )

    def test_a_name_refused_in_kafka_is_also_refused_in_the_group_of_a_consumer(self):
        line = "isolation_level = read_uncommitted\n"
        for conf in (self.with_kafka(line), self.with_kafka(kafka_metrics=line)):
            self.assertIn("consumers read committed messages", self.refused(consumer_settings, conf, "kafka_metrics"))

    def test_a_group_with_options_of_a_consumer_also_reports_the_deciding_option(self):
        conf = self.with_kafka(pipeline_archive="compact_to_mb = 64\n")
        self.assertIn("trigger_seconds determines the number of files", self.refused(archive_settings, conf))

    def test_a_removed_name_is_neither_an_option_nor_a_former_name_of_one(self):
        current = {(group, each.name) for group, options in own_options() for each in options}
        former = {
            (old.group or group, old.name)
            for group, options in own_options()
            for each in options
            for old in each.deprecated_opts
        }
        self.assertLess(30, len(removed()))
        self.assertEqual(set(), removed() & (current | former))

    def test_release_notes_name_each_removed_option(self):
        notes = "".join(path.read_text() for path in (ROOT / "releasenotes" / "notes").glob("*.yaml"))
        for group, name in removed():
            for part in (group, f"``{name}``"):
                self.assertIn(part, notes, f"[{group}] {name}")
