# SPDX-License-Identifier: Apache-2.0
"""The service of the contributor guide runs, responds to probes and stops like the other services."""

import json
import socket
import threading

from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.tests.example_case import load_example
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting
from monasca_common.tests.web import fetch


class OwnServiceTest(Waiting, ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        for topic in ("readings", "readings.dlq"):
            self.kafka.broker.create_topic(topic, 1)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        text = (
            f"[kafka]\ndriver = memory\nbootstrap_servers = {self.kafka.bootstrap_servers}\n"
            "[kafka_readings]\ntopic = readings\ngroup_id = tally\n"
            f"[tally]\nhighest = 100\nstatus_port = {self.port}\n"
        )
        conf = self.read(self.path_of(text))
        began = threading.Event()

        def until(member):
            self.member = member
            began.set()

        self.thread = threading.Thread(target=load_example("own_service").run, args=(conf, until), daemon=True)
        self.thread.start()
        self.assertTrue(began.wait(PATIENCE_SECONDS))
        self.addCleanup(self.stop)

    def stop(self):
        self.member.stop()
        self.thread.join(PATIENCE_SECONDS)

    def get(self, path):
        return fetch(f"http://127.0.0.1:{self.port}{path}")[1]

    def is_ready(self):
        return json.loads(self.get("/readyz")) == {"ready": True, "reasons": []}

    def test_the_service_counts_reports_and_commits_handled_messages(self):
        records = [Record(value, partition=0) for value in (b"1.5", b"101", b"x", b"2")]
        self.kafka.producer().publish("readings", records).raise_for_undelivered()
        self.wait_until(lambda: 'tally_readings_total{outcome="counted"} 2.0' in self.get("/metrics"))
        self.assertIn('tally_readings_total{outcome="refused"} 2.0', self.get("/metrics"))
        self.wait_until(self.is_ready)
        self.stop()

        self.assertEqual([b"101", b"x"], [each.value for each in self.kafka.broker.records("readings.dlq")])
        self.assertEqual(4, self.kafka.broker.committed("tally")[TopicPartition("readings", 0)])
