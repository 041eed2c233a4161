# SPDX-License-Identifier: Apache-2.0
"""The lag of Java's client, which is called through Spark's bridge to Java."""

import logging
import time
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway

from monasca_common.devbroker.jars import kafka_jars
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.tests.functional.operations.test_lag import SECONDS, LagCase
from monasca_common.tests.periodic import periodic


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
