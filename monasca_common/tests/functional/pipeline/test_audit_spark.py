# SPDX-License-Identifier: Apache-2.0
"""Audits on a real Kafka and Spark: ``audit show --spark`` says what ``audit show`` says."""

import json
import random
import time

import fixtures
from oslotest import base

from monasca_common.audit import reports
from monasca_common.cli import main
from monasca_common.devbroker.fixtures import SharedKafkaCluster
from monasca_common.kafka import open_producer
from monasca_common.kafka.message import Record
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.spark import session
from monasca_common.tests.functional.pipeline.pipeline_case import SharedSpark
from monasca_common.tests.unit.audit.random_reports import BUCKET_SECONDS, random_reports

_PARTITIONS = 3
_BACK_SECONDS = 20 * BUCKET_SECONDS
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
[audit]
topic = {topic}
bucket_seconds = {bucket_seconds}
grace_seconds = 0
window_seconds = 3600
[spark]
shuffle_partitions = 2
"""


class AuditSparkTest(base.BaseTestCase):
    TIMEOUT_SCALING_FACTOR = 2  # Spark starts

    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster())
        self.topic = self.fixture.topic(_PARTITIONS)
        servers = self.fixture.cluster.direct_options()["bootstrap.servers"]
        text = _CONFIGURATION.format(servers=servers, topic=self.topic, bucket_seconds=BUCKET_SECONDS)
        [self.path] = self.create_tempfiles([("audit", text)], ".conf")
        self.settings = ProducerSettings(ConnectionSettings(servers))
        session = self.useFixture(SharedSpark()).session
        self.replace_session(lambda settings, name: session)

    def replace_session(self, open_session):
        for name, function in (("open_session", open_session), ("close_session", lambda session: None)):
            self.useFixture(fixtures.MonkeyPatch(f"{session.__name__}.{name}", function))

    def show(self, *arguments):
        """The exit status, what was complained of, and the rows."""
        out, errors = (self.useFixture(fixtures.StringStream(name)).stream for name in ("stdout", "stderr"))
        with fixtures.MonkeyPatch("sys.stdout", out), fixtures.MonkeyPatch("sys.stderr", errors):
            status = main.main(["audit", "show", "--config-file", self.path, "-f", "json", *arguments])
        for stream in (out, errors):
            stream.seek(0)
        rows, complaints = out.read(), [line for line in errors if line.startswith("monasca-common ")]
        return status, complaints, json.loads(rows) if rows else []

    def send(self, values):
        with open_producer(self.settings) as producer:
            records = [Record(value, partition=number % _PARTITIONS) for number, value in enumerate(values)]
            producer.publish(self.topic, records).raise_for_undelivered()

    def test_it_says_what_one_process_says(self):
        status, (said,), rows = self.show("--spark")
        self.assertEqual((3, []), (status, rows))
        self.assertIn("nothing was reported", said)

        start_ms = (round(time.time()) - _BACK_SECONDS) // BUCKET_SECONDS * BUCKET_SECONDS * 1000
        chance = random.Random(17)
        self.send([*map(reports.encode, random_reports(chance, start_ms)), b"no report"])
        for arguments in ((), ("--topic", "topic-[12]", "--missing")):
            here, on_spark = self.show(*arguments), self.show(*arguments, "--spark")
            self.assertEqual(here, on_spark)
            self.assertEqual(1, on_spark[0])
            self.assertIn("buckets of another length", on_spark[1][0])
            self.assertGreater(len(on_spark[2]), 2)

        self.assertEqual(3, self.show("--topic", "nothing*", "--spark")[0])

    def test_where_spark_cannot_be_asked_nothing_is_called_complete(self):
        def unavailable(settings, name):
            raise SparkUnavailable("Spark does not start")

        self.replace_session(unavailable)
        self.send([reports.encode(random_reports(random.Random(1), 0)[0])])
        said = ["monasca-common audit show: Spark does not start\n"]
        self.assertEqual((2, said, []), self.show("--spark"))
