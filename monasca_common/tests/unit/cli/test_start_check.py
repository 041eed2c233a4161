# SPDX-License-Identifier: Apache-2.0
"""The check of topics at the start of a service."""

import importlib.metadata
import time
from unittest import mock

import fixtures

from monasca_common.cli import services, start_check
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.errors import ConfigurationError, RetriableError
from monasca_common.kafka.transport.admin import TopicDescription
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class StartingAdmin:
    """The admin client of a cluster whose topics have this number of replicas."""

    names = ("monasca-lag", "other")

    def __init__(self, copies=3, failure=None, wait_seconds=0.0):
        self.copies, self.failure, self.wait_seconds = tuple(range(copies)), failure, wait_seconds

    def partition_counts(self):
        time.sleep(self.wait_seconds)
        if self.failure is not None:
            raise self.failure
        return dict.fromkeys(self.names, 1)

    def topic_configs(self, topics):
        config = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
        return {topic: {**config, "retention.ms": "1000", "cleanup.policy": "compact"} for topic in topics}

    def describe_topics(self, names):
        return {name: TopicDescription(name, "id", 1, (0,), (self.copies,), (self.copies,)) for name in names}


class StartCheckTest(ConfigurationTestCase):
    def check(self, mode, admin=None, kafka=""):
        """Return the error of the check, or ``None``. ``self.log`` contains the log lines of the check."""
        self.log = self.useFixture(fixtures.FakeLogger(start_check.__name__, nuke_handlers=False))
        conf = self.with_kafka(**({"monitoring": f"durability_check = {mode}"} if mode else {}), kafka=kafka)
        with mock.patch.object(start_check.plugins, "load_admin", lambda *_: admin):
            try:
                return check_at_start("lag", conf)
            except ConfigurationError as error:
                return str(error)

    def test_an_error_in_the_configuration_is_reported_only_by_the_service(self):
        self.log = self.useFixture(fixtures.FakeLogger(start_check.__name__))
        self.assertIsNone(check_at_start("notification", self.with_kafka()))
        self.assertEqual("", self.log.output)
        conf = self.with_kafka(monitoring="durability_check = refuse")
        error = self.assertRaises(ConfigurationError, check_at_start, "notification", conf)
        self.assertIn("connection in group [alarms]", str(error))

    def test_safe_topics_are_not_logged(self):
        for mode in ("", "warn", "refuse"):
            self.assertIsNone(self.check(mode, StartingAdmin()))
            self.assertEqual("", self.log.output)

    def test_by_default_the_service_starts_and_logs_a_finding_in_one_line(self):
        self.assertIsNone(self.check("", StartingAdmin(copies=1)))
        [line] = self.log.output.splitlines()
        for part in ("topic monasca-lag: there is one replica", "monasca-common durability check"):
            self.assertIn(part, line)

    def test_refuse_prevents_the_start(self):
        refused = self.check("refuse", StartingAdmin(copies=1))
        for part in ("topic monasca-lag: there is one replica", "durability_check in group [monitoring] is refuse"):
            self.assertIn(part, refused)

    def test_brokers_that_do_not_respond_prevent_the_start_only_with_refuse(self):
        silent = StartingAdmin(failure=RetriableError("no response from kafka:9092"))
        self.assertIsNone(self.check("warn", silent))
        self.assertIn("no response from kafka:9092", self.check("refuse", silent))

    def test_the_wait_is_bounded(self):
        with mock.patch.object(start_check, "_WARN_SECONDS", 0.1):
            self.assertIsNone(self.check("warn", StartingAdmin(wait_seconds=60.0)))
        self.assertIn("did not respond within 0.1 s", self.log.output)

    def test_a_disabled_check_queries_no_brokers(self):
        self.assertIsNone(self.check("off", None))

    def test_the_memory_driver_is_not_checked(self):
        self.assertIsNone(self.check("refuse", None, kafka="driver = memory"))


class MirrorStartTest(ConfigurationTestCase):
    def errors(self, topics):
        """Return the topics with errors, and the queried groups of options."""
        conf = self.with_kafka(
            mirror=f"topics = {topics}",
            mirror_source="bootstrap_servers = a:1",
            mirror_target="bootstrap_servers = b:1",
        )
        target = StartingAdmin(copies=1)
        target.names = ("metrics", "logs-1", "logs-2", "other", "__consumer_offsets", "monasca-mirror-positions")
        asked = []
        with mock.patch.object(start_check.plugins, "load_admin", lambda _, group: asked.append(group) or target):
            topics = start_check.topics_by_group("mirror", conf)
            found = start_check.durability_errors(topics, conf)
        return {each.topic for each in found}, asked

    def test_a_mirror_checks_its_copies_and_its_positions_topic_in_the_target(self):
        positions = "monasca-mirror-positions"
        topics = {"metrics", "logs-1", "logs-2", positions}
        self.assertEqual((topics, ["mirror_target"]), self.errors("metrics, logs-*"))
        self.assertEqual({*topics, "other"}, self.errors("*")[0])


class EveryServiceTest(ConfigurationTestCase):
    def test_each_service_is_checked_at_its_start(self):
        commands = [each.load() for each in importlib.metadata.entry_points(group="monasca_common.cli")]
        checked = {each.checked for each in commands if isinstance(each, type) and issubclass(each, ServiceCommand)}
        monitoring = {"audit", "audit counter", "dashboard", "lag", "mirror"}
        self.assertEqual(monitoring | {"notification", "persister", "sink"}, checked)

    def test_the_topics_of_monitoring_services_are_those_of_their_figures(self):
        conf = self.with_kafka(audit="topic = reports")
        expected = {"audit": {"reports"}, "audit counter": {"reports"}, "dashboard": {"reports", "monasca-lag"}}
        names = {name: {each.name for each in services.topics(name, conf)} for name in expected}
        self.assertEqual(expected, names)
