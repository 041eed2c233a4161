# SPDX-License-Identifier: Apache-2.0
"""Verdicts on groups in Kafka, also of Java's client, and the commands that print them."""

import json
import logging
import time
import uuid
from pathlib import Path

import confluent_kafka
import pyspark
from oslotest import base
from py4j.java_gateway import JavaGateway

from monasca_common.devbroker.jars import kafka_jars
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagStatus, LagWindow, partition_lag
from monasca_common.tests.command import run_main
from monasca_common.tests.functional.administration import set_topic_config
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import Waiting

SECONDS = 30.0
_STEP_SECONDS = 0.6  # in a window of 1 s, commits less than half a second apart are not all kept
_WINDOW = LagWindow(commits=4, seconds=1.0)


class LagCase(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster())
        self.cluster = self.fixture.cluster
        self.admin = self.cluster.admin
        self.topic = self.fixture.topic()
        self.partition = TopicPartition(self.topic, 0)
        self.own = uuid.uuid4().hex[:12]

    def put(self, count, **options):
        producer = confluent_kafka.Producer({**self.cluster.direct_options(), **options, "log_level": 0})
        if "transactional.id" in options:
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
        for number in range(count):
            producer.produce(self.topic, b"%d" % number, partition=0)
        if "transactional.id" in options:
            producer.commit_transaction(SECONDS)
        self.assertEqual(0, producer.flush(SECONDS))

    def commit(self, name, offset):
        self.admin.alter_group_offsets(self.group(name), {self.partition: offset})

    def group(self, name):
        return f"{name}-{self.own}"

    def lags(self, *names, window=_WINDOW):
        servers = self.cluster.direct_options()["bootstrap.servers"]
        survey = LagSurvey(self.admin, ConnectionSettings(servers), window, timeout_seconds=SECONDS)
        now_ms = round(time.time() * 1000)
        states = survey.scan([self.group(name) for name in names], now_ms)
        return {name: partition_lag(states[self.group(name)][self.partition], now_ms, window) for name in names}


class TestLagSurvey(LagCase):
    def test_stopped_stalled_late_and_rewound_groups_are_distinguished(self):
        self.put(20)
        self.commit("stopped", 10)
        for stall, slow, back, fast in ((5, 10, 15, 1), (5, 12, 18, 10), (5, 14, 20, 30), (5, 16, 4, 60)):
            self.commit("stalled", stall)
            self.commit("slow", slow)
            self.commit("rewound", back)
            self.commit("catching up", fast)
            self.put(20)
            time.sleep(_STEP_SECONDS)
        lags = self.lags("stopped", "stalled", "slow", "rewound", "catching up")
        self.assertEqual(
            {
                "stopped": LagStatus.STOP,
                "stalled": LagStatus.STALL,
                "slow": LagStatus.WARNING,
                "rewound": LagStatus.REWIND,
                "catching up": LagStatus.OK,
            },
            {name: lag.status for name, lag in lags.items()},
        )
        self.assertEqual([90, 95, 84, 96, 40], [lag.messages for lag in lags.values()])
        self.assertEqual(1.0, lags["slow"].completeness)
        self.assertLess(4 * _STEP_SECONDS, lags["stopped"].seconds)

    def test_a_group_without_unread_messages_is_ok_even_after_a_long_silence(self):
        self.put(3)
        self.commit("idle", 3)
        time.sleep(_WINDOW.seconds + 0.2)
        lag = self.lags("idle")["idle"]
        self.assertEqual((LagStatus.OK, 0, 0.0), (lag.status, lag.messages, lag.seconds))

    def test_a_group_before_only_transaction_markers_has_no_unread_messages(self):
        self.put(3, **{"transactional.id": f"transaction-{self.own}"})
        self.commit("transactional", 3)
        self.wait_until(lambda: self.admin.end_offsets([self.partition])[self.partition] == 4)
        self.assertEqual(0, self.lags("transactional")["transactional"].messages)

    def test_past_and_imminent_deletions_of_unread_messages_are_shown(self):
        self.put(10)
        self.commit("late", 2)
        self.admin.delete_records({self.partition: 5})
        set_topic_config(self.admin, self.topic, {"retention.ms": "3600000"})
        lag = self.lags("late")["late"]
        self.assertEqual((3, 5), (lag.deleted, lag.messages))
        self.assertTrue(3500 < lag.headroom_seconds <= 3600)

    def test_a_deleted_topic_is_omitted_from_its_group(self):
        self.put(1)
        self.commit("orphan", 0)
        self.admin.delete_topic(self.topic)
        servers = self.cluster.direct_options()["bootstrap.servers"]
        survey = LagSurvey(self.admin, ConnectionSettings(servers), _WINDOW, timeout_seconds=SECONDS)
        group = self.group("orphan")
        self.assertEqual({group: {}}, survey.scan([group], round(time.time() * 1000)))

    def test_a_scan_creates_no_group(self):
        self.put(2)
        self.commit("seen", 1)
        before = self.admin.groups()
        self.lags("seen")
        self.assertEqual(before, self.admin.groups())


class TestLagCommands(LagCase):
    def setUp(self):
        super().setUp()
        servers = self.cluster.direct_options()["bootstrap.servers"]
        self.config = self.create_tempfiles([("lag", f"[kafka]\nbootstrap_servers = {servers}\n")], ".conf")[0]

    def run_command(self, *arguments):
        return run_main("lag", *arguments, "--config-file", self.config)

    def test_list_has_a_row_for_each_group_and_status_0_without_errors(self):
        self.put(10)
        self.commit("ahead", 10)
        self.commit("behind", 4)
        status, text, _ = self.run_command("list", "--group", f"*-{self.own}", "-f", "json")
        rows = {row["group"]: row for row in json.loads(text)}
        self.assertEqual(0, status)
        self.assertEqual({self.group("ahead"): 0, self.group("behind"): 6}, {g: r["unread"] for g, r in rows.items()})
        self.assertEqual({"OK"}, {row["status"] for row in rows.values()})

    def test_a_group_in_error_ends_with_status_1(self):
        self.put(10)
        self.commit("stopped", 4)
        with open(self.config, "a") as file:
            file.write("[lag]\nwindow_seconds = 1\n")
        time.sleep(1.2)
        for command in ("list", "show"):
            status, text, _ = self.run_command(command, "--group", self.group("stopped"))
            self.assertEqual(1, status)
            self.assertIn("STOP", text)

    def test_show_has_a_row_for_each_partition(self):
        self.put(10)
        self.commit("behind", 4)
        status, text, _ = self.run_command("show", "--group", self.group("behind"), "-f", "json")
        (row,) = json.loads(text)
        self.assertEqual((0, self.topic, 0, 6), (status, row["topic"], row["partition"], row["unread"]))

    def test_an_unknown_group_is_an_error_with_the_command_that_lists_groups(self):
        status, _, err = self.run_command("show", "--group", "nobody")
        self.assertEqual(2, status)
        self.assertIn("lag list", err)


@periodic("another client; the normal run contains TestLagSurvey")
class TestJavaClient(LagCase):
    """The groups of Java's client, like the groups of Kafka Connect's sinks, with both group protocols."""

    def setUp(self):
        super().setUp()
        logging.getLogger("py4j").setLevel(logging.WARNING)
        (bridge,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
        self.java = JavaGateway.launch_gateway(
            jarpath=str(bridge), classpath=f"{kafka_jars()}/*", die_on_exit=True, enable_auth=True
        )
        self.addCleanup(self.java.shutdown)

    def consumer(self, protocol):
        text = "org.apache.kafka.common.serialization.StringDeserializer"
        options = self.java.jvm.java.util.Properties()
        for name, value in {
            "bootstrap.servers": self.cluster.direct_options()["bootstrap.servers"],
            "group.id": self.group(protocol),
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "max.poll.records": "4",
            "key.deserializer": text,
            "value.deserializer": text,
        }.items():
            options.setProperty(name, value)
        consumer = self.java.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(options)
        self.addCleanup(consumer.close)
        consumer.subscribe(self.java.jvm.java.util.List.of(self.topic))
        return consumer

    def test_each_commit_is_seen_with_its_time(self):
        self.put(10)
        for protocol in ("classic", "consumer"):
            consumer = self.consumer(protocol)
            turn = self.java.jvm.java.time.Duration.ofMillis(200)
            began = round(time.time() * 1000)
            for _ in range(2):
                self.wait_until(lambda: consumer.poll(turn).count() == 4, f"four messages by {protocol}")  # noqa: B023
                consumer.commitSync()
            connection = ConnectionSettings(self.cluster.direct_options()["bootstrap.servers"])
            survey = LagSurvey(self.admin, connection, LagWindow(), timeout_seconds=SECONDS)
            now_ms = round(time.time() * 1000)
            state = survey.scan([self.group(protocol)], now_ms)[self.group(protocol)][self.partition]
            self.assertEqual([4, 8], [commit.offset for commit in state.commits])
            self.assertTrue(all(began <= commit.time_ms <= now_ms for commit in state.commits), state)
