# SPDX-License-Identifier: Apache-2.0
"""``monasca-common init`` with a SQLite file and a simulated cluster."""

import os

import fixtures

from monasca_common.kafka import plugins
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.transport.admin import TopicDescription
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.tests.contracts.storage import SqlDatabase
from monasca_common.tests.unit.cli.command_case import CommandCase

_CONFIGURATION = """\
[kafka]
bootstrap_servers = kafka:9092
[database]
connection = {url}
[api]
auth_strategy = noauth
"""


class Cluster:
    """``topics``: the numbers of partitions by topic. ``asked``: the checked topics."""

    def __init__(self):
        self.topics = {}
        self.asked = []
        self.copies = {}
        self.configs = {}
        self.meanwhile = False  # another program has just created the topic
        self.refusal = None

    def topic_ids(self, topics, timeout):
        return {topic: "id" for topic in topics if topic in self.topics}

    def describe_topic(self, name, timeout):
        count = self.topics[name]
        return TopicDescription(name, "id", count, (1,) * count, ((1, 2),) * count, ((1, 2),) * count)

    def create_topic(self, name, *, partitions, replication_factor, config=None, validate_only=False):
        if validate_only:
            if self.refusal is not None:
                raise self.refusal
            self.asked.append(name)
            return
        if self.meanwhile:
            raise TransportError("the topic exists", code=36, name="TOPIC_ALREADY_EXISTS")
        self.topics[name], self.copies[name] = partitions, replication_factor
        self.configs[name] = config


class InitCase(CommandCase):
    command = ("init",)

    def setUp(self):
        super().setUp()
        self.clusters = {}
        self.patch(plugins, "load_admin", self.load_admin)
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.file = os.path.join(self.folder, "monasca.sqlite")
        self.configuration = _CONFIGURATION.format(url=f"sqlite:///{self.file}")
        self.cluster = self.clusters["kafka"] = Cluster()

    def load_admin(self, conf, group):
        servers = (conf[group].bootstrap_servers or conf.kafka.bootstrap_servers)[0]
        return self.clusters.setdefault(servers.partition(":")[0], Cluster())

    def topics(self, text="", *arguments):
        rows = self.rows(*arguments, text=self.configuration + text)
        return {each["name"]: each for each in rows if each["kind"] == "topic"}

    def revision(self, path):
        return SqlDatabase(self.addCleanup, StorageSettings("sqlite", f"sqlite:///{path}")).storage().status().found


class DryRunTest(InitCase):
    def test_without_execute_missing_items_are_shown(self):
        topics = self.topics()
        for name, partitions, services in (
            ("metrics", 12, "api, persister, pipeline"),
            ("log", 12, "api"),
            ("metrics.dlq", 1, "persister, pipeline"),
        ):
            row = topics[name]
            shown = row["state"], row["partitions"], row["services"]
            self.assertEqual(("missing", partitions, services), shown)
        self.assertIn("nothing was changed: use --execute to apply", self.run_command()[2])
        self.assertEqual({}, self.cluster.topics)
        self.assertFalse(os.path.exists(self.file))

    def test_a_database_of_an_earlier_build_is_refused_before_anything_is_created(self):
        self.run_command("--execute")
        self.cluster.topics.clear()
        with schema.engine(f"sqlite:///{self.file}", to_write=True).begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0022'")
        for arguments in ((), ("--execute",)):
            status, _, err = self.run_command(*arguments)
            self.assertEqual((1, {}), (status, self.cluster.topics))
            self.assertIn("from a build before release 4.0.0, which cannot be upgraded: use a new database", err)

    def test_the_brokers_validate_the_topic(self):
        self.run_command()
        self.assertIn("metrics.dlq", self.cluster.asked)
        self.cluster.refusal = TransportError("only 1 broker", name="INVALID_REPLICATION_FACTOR")
        status, _, err = self.run_command("--replication-factor", "3", "--execute")
        self.assertEqual((1, "monasca-common init: topic metrics cannot be created: only 1 broker\n"), (status, err))
        self.assertFalse(os.path.exists(self.file))  # all items are checked before the first one is created

    def test_existing_items_are_shown(self):
        self.cluster.topics = {"metrics": 4}
        row = self.topics()["metrics"]
        self.assertEqual(("exists", 4, 2), (row["state"], row["partitions"], row["replicas"]))


class ExecuteTest(InitCase):
    def test_databases_and_topics_are_created(self):
        database, *topics = self.rows("--execute")
        self.assertEqual(("database", f"sqlite:///{self.file}", "created"), tuple(database.values())[:3])
        self.assertEqual(self.revision(self.file), database["schema"])
        self.assertEqual({"created"}, {each["state"] for each in topics})
        self.assertEqual(
            {
                "metrics": 12,
                "log": 12,
                "monevents": 12,
                "alarm-state-transitions": 12,
                "metrics.dlq": 1,
                "alarm-state-transitions.dlq": 1,
                "monasca-lag": 1,
            },
            self.cluster.topics,
        )
        compacted = {name for name, config in self.cluster.configs.items() if config == {"cleanup.policy": "compact"}}
        self.assertEqual({"monasca-lag"}, compacted)
        self.assertEqual({-1}, set(self.cluster.copies.values()))  # the brokers' own default
        self.assertIsNotNone(self.revision(self.file))

    def test_a_second_run_creates_nothing(self):
        self.rows("--execute")
        self.cluster.create_topic = None
        self.assertEqual({"exists"}, {each["state"] for each in self.rows("--execute")})
        self.assertEqual("", self.run_command()[2])

    def test_partitions_and_replicas_are_as_requested(self):
        self.rows("--execute", "--partitions", "3", "--replication-factor", "3")
        self.assertEqual((3, 1), (self.cluster.topics["metrics"], self.cluster.topics["metrics.dlq"]))
        self.assertEqual({3}, set(self.cluster.copies.values()))
        self.assertEqual(2, self.run_command("--partitions", "0")[0])

    def test_a_topic_created_concurrently_is_not_an_error(self):
        self.cluster.meanwhile = True
        self.assertEqual(0, self.run_command("--execute")[0])

    def test_a_topic_created_while_topics_are_checked_is_not_an_error(self):
        self.cluster.refusal = TransportError("the topic exists", code=36, name="TOPIC_ALREADY_EXISTS")
        self.assertEqual(0, self.run_command("--execute")[0])


class ConfigurationTest(InitCase):
    def test_names_come_from_the_options_of_each_service(self):
        found = self.topics(
            "metrics_topic = m\ninvalid_metrics = drop\nrejected_metrics_topic = bad\n"
            "[kafka_metrics]\ntopic = m\ndead_letter_topic = dead\n[kafka_alarm_history]\nenabled = false\n"
            "[kafka_logs]\nenabled = true\ntopic = l\n[pipeline_aggregate]\ntopic = m\noutput_topic = hours\n"
            "[pipeline_archive]\nlocation = /archive\ntopic = m,l\n"
        )
        self.assertEqual(
            {
                "m",
                "log",
                "monevents",
                "bad",
                "dead",
                "l",
                "l.dlq",
                "m.dlq",
                "hours",
                "alarm-state-transitions",
                "monasca-lag",
            },
            set(found),
        )
        dead_letters = {name for name in found if found[name]["partitions"] == 1} - {"monasca-lag"}
        self.assertEqual({"bad", "dead", "l.dlq", "m.dlq"}, dead_letters)
        self.assertEqual("api, persister, pipeline", found["m"]["services"])

    def test_the_pipeline_evaluates_alarms_with_an_alarms_database(self):
        only = ("--service", "pipeline")
        found = self.topics("[pipeline_evaluate]\nalarm_transitions_topic = changes\ntopic = m\n", *only)
        self.assertEqual({"metrics", "m", "changes", "metrics.dlq", "m.dlq"}, set(found))
        self.assertEqual("pipeline", found["changes"]["services"])
        self.assertIn("alarm-state-transitions", self.topics("", *only))

    def test_tables_of_a_separate_alarms_database_are_created_there(self):
        own = os.path.join(self.folder, "alarms.sqlite")
        self.run_command("--execute", text=f"{self.configuration}[alarms]\nconnection = sqlite:///{own}\n")
        self.assertIsNotNone(self.revision(own))

    def test_a_dead_letter_topic_that_a_service_reads_has_partitions_like_other_topics(self):
        found = self.topics("[kafka_logs]\nenabled = true\ntopic = metrics.dlq\n")
        self.assertEqual(12, found["metrics.dlq"]["partitions"])

    def test_topics_of_a_consumer_with_separate_brokers_are_created_there(self):
        self.run_command("--execute", text=f"{self.configuration}[kafka_metrics]\nbootstrap_servers = other:9092\n")
        self.assertEqual({"metrics", "metrics.dlq"}, set(self.clusters["other"].topics))
        self.assertLessEqual({"metrics", "log"}, set(self.cluster.topics))

    def test_tables_of_a_job_with_a_separate_database_are_created_there(self):
        own = os.path.join(self.folder, "own.sqlite")
        self.run_command("--execute", text=f"{self.configuration}[pipeline_aggregate]\nconnection = sqlite:///{own}\n")
        self.assertIsNotNone(self.revision(own))
        self.assertIsNotNone(self.revision(self.file))

    def test_only_the_named_services_are_checked(self):
        self.assertEqual({"metrics", "log", "monevents"}, set(self.topics("", "--service", "api")))

    def test_an_error_in_the_configuration_names_the_service(self):
        status, _, err = self.run_command(text="[kafka]\nbootstrap_servers = kafka:9092\n")
        self.assertEqual(1, status)
        self.assertIn("monasca-common init: persister: connection in group [database] is not set", err)
        self.assertIn("--service", err)

    def test_no_password_is_shown(self):
        text = self.configuration.replace(f"sqlite:///{self.file}", "postgresql://me:hush@127.0.0.1:1/monasca")
        status, out, err = self.run_command(text=text + "[storage]\ndriver = postgresql\n")
        self.assertEqual(1, status)
        self.assertNotIn("hush", out + err)
