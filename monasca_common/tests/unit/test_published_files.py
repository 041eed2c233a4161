# SPDX-License-Identifier: Apache-2.0
"""The services read files of the published persister, notification engine and API.

The samples contain the files that the containers of the published packages generate by default, and every option that
the packages declare, with its default.
"""

from __future__ import annotations

import importlib
import pathlib
import re

from oslo_config import cfg
from oslo_log import log
from oslotest import base

from monasca_common.alarms.settings import NoAlarmsDatabase
from monasca_common.api.service import storage_of
from monasca_common.api.settings import api_settings
from monasca_common.kafka.config import config_file, consumer_settings, producer_settings
from monasca_common.notification.settings import (
    email_settings,
    jira_settings,
    notification_settings,
    pagerduty_settings,
    slack_settings,
    webhook_settings,
)
from monasca_common.persister.settings import persister_settings
from monasca_common.storage.base import Kind
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

SAMPLES = pathlib.Path(__file__).parent / "kafka" / "config" / "samples"
# registered by keystonemiddleware and oslo.policy when the API serves

_OTHERS = ("keystone_authtoken", "oslo_policy")


class PublishedFilesTestCase(ConfigurationTestCase):
    def sample(self, name: str, more: str = "") -> cfg.ConfigOpts:
        """Read the file, followed by ``more``, as the commands do: with the options of oslo.log."""
        conf = cfg.ConfigOpts()
        log.register_options(conf)
        files = ["--config-file", str(SAMPLES / f"{name}.conf"), "--config-file", self.path_of(more)]
        conf(files, project="monasca-common-tests", default_config_dirs=[])
        return conf

    def logged(self, call, conf: cfg.ConfigOpts):
        """Return the result of the call, and its warnings."""
        with self.assertLogs("monasca_common", "WARNING") as logs:
            result = call(conf)
        return result, [record.getMessage() for record in logs.records]

    def check_names(self, conf: cfg.ConfigOpts, logged: list[str], groups=None) -> None:
        """Check that each name of the file (in ``groups``) is a current or former name of an option, or is in a
        warning."""
        checked = 0
        for group, names in config_file.names_in_files(conf).items():
            if group in _OTHERS or (groups is not None and group not in groups):
                continue
            for name in names:
                checked += 1
                self.assertEqual(1, self.counted(conf, group, name, logged), f"[{group}] {name}")
        self.assertGreater(checked, 5)

    def counted(self, conf: cfg.ConfigOpts, group: str, name: str, logged: list[str]) -> int:
        """Return the number of lines about this name; 1 for a name without a warning."""
        listed = rf"\[{group}\](?: is ignored \(| )(?:[\w, ]+, )?{name}(?:, [\w, \[\]]+)?(?:\)| is ignored|: read as)"
        lines = sum(bool(re.match(listed, line)) for line in logged)
        if lines == 0:
            return int((group, name) in self.read_names(conf))
        return lines

    def read_names(self, conf):
        """Return group and name of each registered option, including former names."""
        names = set()
        for info, group in conf._all_opt_infos():
            home = group.name if group else "DEFAULT"
            names |= {(home, info["opt"].dest), (home, info["opt"].name)}
            names |= {(each.group or home, each.name) for each in info["opt"].deprecated_opts}
        return names


class PublishedPersisterTest(PublishedFilesTestCase):
    def test_a_persister_with_influxdb_works_with_its_old_file(self):
        settings, _ = self.logged(persister_settings, self.sample("persister-9.0.0"))

        self.assertEqual("influxdb", settings.storage.driver)
        self.assertEqual("influxdb://mon_persister:password@influxdb:8086/mon", settings.storage.connection)
        metrics, alarms = settings.groups
        self.assertEqual((Kind.METRICS, Kind.ALARM_HISTORY), (metrics.kind, alarms.kind))
        self.assertEqual((("metrics",), "1_metrics"), (metrics.consumer.topics, metrics.consumer.group_id))
        self.assertEqual((("alarm-state-transitions",), "1_events"), (alarms.consumer.topics, alarms.consumer.group_id))
        for group in settings.groups:
            self.assertEqual("kafka:9092", group.consumer.connection.bootstrap_servers)
            self.assertEqual("kafka:9092", group.producer.connection.bootstrap_servers)
            self.assertEqual("1", group.consumer.connection.client_id)
            self.assertEqual((1000, 15.0), (group.consumer.batch_size, group.consumer.max_wait_time_seconds))
            self.assertEqual(1, group.num_processors)

    def test_a_persister_with_cassandra_is_refused_with_the_remedy(self):
        conf = self.sample("persister-9.0.0-cassandra")
        with self.assertLogs("monasca_common", "WARNING") as logs:
            refusal = self.refused(persister_settings, conf)

        self.assertIn("connection in group [database] is not set", refusal)
        logged = [record.getMessage() for record in logs.records]
        self.assertIn("[repositories] metrics_driver is ignored: ", "\n".join(logged))
        self.check_names(conf, logged)

    def test_each_name_of_a_persisters_file_is_read_or_logged_once(self):
        for name in ("persister-9.0.0", "persister-9.0.0-every-option"):
            conf = self.sample(name)
            _, logged = self.logged(persister_settings, conf)
            self.check_names(conf, logged)
            self.assertNotIn("mon_persister", "\n".join(logged))
            self.forget_warnings()

    def test_every_option_of_a_persister_has_the_value_of_the_file(self):
        settings, _ = self.logged(persister_settings, self.sample("persister-9.0.0-every-option"))

        self.assertEqual("influxdb://mon_persister:secret@127.0.0.1:8086/mon", settings.storage.connection)
        metrics, alarms = settings.groups
        self.assertEqual((20_000, 1), (metrics.consumer.batch_size, alarms.consumer.batch_size))
        for group in settings.groups:
            self.assertEqual(30.0, group.consumer.max_wait_time_seconds)  # both values refer to [kafka] with a $
            self.assertEqual("monasca-persister", group.consumer.connection.client_id)

    def test_ignored_points_that_cannot_be_parsed_become_dead_letters(self):
        _, logged = self.logged(persister_settings, self.sample("persister-9.0.0"))

        (line,) = [line for line in logged if "ignore_parse_point_error" in line]
        self.assertEqual(
            "[repositories] ignore_parse_point_error is ignored: a message that cannot be stored goes to "
            "dead_letter_topic, and the others are stored",
            line,
        )

    def test_zookeeper_options_are_logged_in_one_line(self):
        _, logged = self.logged(persister_settings, self.sample("persister-9.0.0"))

        (line,) = [line for line in logged if line.startswith("[zookeeper]")]
        self.assertEqual(
            "[zookeeper] is ignored (partition_interval_recheck_seconds, uri): groups share partitions through the "
            "brokers, not through ZooKeeper; remove the group",
            line,
        )


class PublishedApiTest(PublishedFilesTestCase):
    def settings(self, conf: cfg.ConfigOpts):
        """Return the API's settings and its storage, as at the start."""
        return api_settings(conf), producer_settings(conf), storage_of(conf)

    def test_an_api_accepts_posts_with_its_old_file(self):
        (settings, producer, storage), logged = self.logged(self.settings, self.sample("api-11.0.0"))

        self.assertEqual("kafka:9092", producer.connection.bootstrap_servers)
        self.assertEqual(("metrics", "RegionOne"), (settings.metrics_topic, settings.region))
        self.assertEqual("keystone", settings.auth_strategy)
        self.assertIsNone(storage)
        refusal = "\n".join(logged)
        self.assertIn("[storage] driver does not support reads; only posts are served", refusal)
        self.assertIn("[security] is ignored (", refusal)
        self.assertIn("policy_file", refusal)

    def test_each_name_of_an_apis_file_is_read_or_logged_once(self):
        for name in ("api-11.0.0", "api-11.0.0-every-option"):
            conf = self.sample(name)
            _, logged = self.logged(self.settings, conf)
            self.check_names(conf, logged)
            self.forget_warnings()

    def test_every_option_of_an_api_has_the_value_of_the_file(self):
        (settings, producer, _), _ = self.logged(self.settings, self.sample("api-11.0.0-every-option"))

        self.assertEqual("127.0.0.1:9092", producer.connection.bootstrap_servers)
        self.assertEqual(
            ("metrics", "events", "log"), (settings.metrics_topic, settings.events_topic, settings.logs_topic)
        )

    def test_an_api_keeps_the_region_of_its_file(self):
        text = (SAMPLES / "api-11.0.0.conf").read_text().replace("RegionOne", "north")

        self.assertEqual("north", self.logged(api_settings, self.configured(text))[0].region)


class PublishedNotificationTest(PublishedFilesTestCase):
    def consumer(self, conf: cfg.ConfigOpts):
        return consumer_settings(conf, "kafka_notifications")

    def test_the_file_of_a_notification_engine_configures_its_consumer(self):
        for name, brokers in (
            ("notification-9.0.0", "kafka:9092"),
            ("notification-9.0.0-every-option", "127.0.0.1:9092"),
        ):
            alarms, _ = self.logged(self.consumer, self.sample(name))
            self.assertEqual((("alarm-state-transitions",), "monasca-notification"), (alarms.topics, alarms.group_id))
            self.assertEqual(brokers, alarms.connection.bootstrap_servers)
            self.forget_warnings()

    def test_options_of_kafka_and_zookeeper_are_read_or_logged_once(self):
        served = {("kafka", "periodic")}  # read by the engine itself
        for name in ("notification-9.0.0", "notification-9.0.0-every-option"):
            conf = self.sample(name)
            for group, option in served:
                conf.register_opt(cfg.StrOpt(option), group=group)
            _, logged = self.logged(self.consumer, conf)
            self.check_names(conf, logged, groups=("kafka", "zookeeper"))
            self.forget_warnings()


class NotificationServiceTest(PublishedFilesTestCase):
    def test_a_file_without_an_alarms_database_is_refused_with_the_remedy(self):
        conf = self.sample("notification-9.0.0")
        self.assertRaisesRegex(NoAlarmsDatabase, r"connection in group \[alarms\]", notification_settings, conf)

    def test_with_an_alarms_database_topics_and_groups_are_read(self):
        settings, _ = self.logged(notification_settings, self.with_database("notification-9.0.0"))
        consumer = settings.consumer
        self.assertEqual((("alarm-state-transitions",), "monasca-notification"), (consumer.topics, consumer.group_id))
        self.assertEqual((30.0, 5), (settings.retry.interval, settings.retry.max_attempts))

    def test_each_other_name_is_read_or_logged(self):
        for name in ("notification-9.0.0", "notification-9.0.0-every-option"):
            conf = self.with_database(name)
            _, logged = self.logged(self.everything, conf)
            self.check_names(conf, logged)
            self.forget_warnings()

    def test_removed_options_of_notifiers_are_logged_with_the_reason(self):
        extra = "[slack_notifier]\ninsecure = true\nproxy = http://p\n[jira_notifier]\ncustom_formatter = f.yml\n"
        _, logged = self.logged(self.everything, self.with_database("notification", extra))
        self.assertEqual(2, sum(line.startswith("[slack_notifier]") for line in logged))
        self.assertIn("subject.txt", next(line for line in logged if line.startswith("[jira_notifier]")))

    def test_the_old_endpoint_of_pagerduty_is_replaced(self):
        settings, logged = self.logged(pagerduty_settings, self.sample("notification-9.0.0-every-option"))
        self.assertEqual("https://events.pagerduty.com/v2/enqueue", settings.url)
        self.assertTrue(any(line.startswith("[pagerduty_notifier] url is ignored") for line in logged))

    def everything(self, conf):
        of_notifiers = (webhook_settings, email_settings, jira_settings, slack_settings, pagerduty_settings)
        return [read(conf) for read in (notification_settings, *of_notifiers)]

    def with_database(self, name, extra=""):
        return self.sample(name, f"{extra}[alarms]\nconnection = sqlite:////tmp/alarms.sqlite\n")


class OldGroupsTest(ConfigurationTestCase):
    def test_a_group_registered_by_a_service_is_not_reported(self):
        conf = self.with_kafka(zookeeper="uri = zookeeper:2181")
        conf.register_opt(cfg.StrOpt("uri"), group="zookeeper")

        with self.assertNoLogs("monasca_common", "WARNING"):
            producer_settings(conf)


IMPORTS = {
    "monasca-agent 10.0.0": (
        "kafka_lib.client",
        "kafka_lib.common",
        "kafka_lib.consumer",
        "validation.metrics",
    ),
    "monasca-api 11.0.0": (
        "kafka.client_factory",
        "kafka_lib.client",
        "kafka_lib.common",
        "repositories.exceptions:AlreadyExistsException",
        "repositories.exceptions:DoesNotExistException",
        "repositories.exceptions:InvalidUpdateException",
        "repositories.exceptions:RepositoryException",
        "simport.simport",
        "validation.metrics",
    ),
    "monasca-notification 9.0.0": ("kafka.client_factory",),
    "monasca-persister 9.0.0": ("kafka.client_factory", "kafka.consumer", "simport.simport"),
}
# These programs do not start. The migration page lists them with the reason; all other imported modules exist.

MISSING = {
    "monasca-events-api 8.0.0": ("policy.policy_engine", "rest.exceptions", "rest.utils"),
    "monasca-log-api 2.11.0": ("policy.policy_engine", "rest.utils"),
    "monasca-transform 2.0.0": ("kafka_lib.producer",),
}


class PublishedImportsTest(base.BaseTestCase):
    def test_the_packages_that_run_find_their_imports(self):
        for package, names in IMPORTS.items():
            for name in names:
                module, _, attribute = name.partition(":")
                loaded = importlib.import_module(f"monasca_common.{module}")
                self.assertTrue(not attribute or hasattr(loaded, attribute), f"{package}: {name}")

    def test_the_former_names_of_clients_exist_and_take_no_addresses(self):
        consumer = importlib.import_module("monasca_common.kafka.consumer")
        producer = importlib.import_module("monasca_common.kafka.producer")
        self.assertRaises(TypeError, consumer.KafkaConsumer, "localhost:9092", "localhost:2181", "/", "group", "topic")
        self.assertRaises(TypeError, producer.KafkaProducer, url="localhost:9092")

    def test_the_packages_that_do_not_run_lack_the_modules_listed_on_the_page(self):
        for package, modules in MISSING.items():
            for module in modules:
                error = self.assertRaises(ImportError, importlib.import_module, f"monasca_common.{module}")
                self.assertIn("monasca_common", str(error.name), package)
