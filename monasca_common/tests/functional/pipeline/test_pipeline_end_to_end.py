# SPDX-License-Identifier: Apache-2.0
"""The complete path: metrics posted to the API are aggregated, and the API returns the aggregates."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import fixtures

from monasca_common.api.query import iso
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.functional.api import test_monascaclient
from monasca_common.tests.functional.api.api_case import METRICS, ApiProcessCase
from monasca_common.tests.functional.pipeline import attached_driver
from monasca_common.tests.functional.pipeline.pipeline_case import SharedSpark, expected
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.unit.pipeline.pipeline_case import SHIPPED

SECONDS = 240  # for processes that start Spark
HOUR_MS = 3_600_000
NAME = "mem.total_mb"

_PIPELINE = """\
[kafka]
bootstrap_servers = {servers}
[database]
connection = {url}
[spark]
master = local[2]
shuffle_partitions = 2
[pipeline_aggregate]
topic = {topic}
output_topic = {topic}
dead_letter_topic = {dead_letters}
trigger_seconds = 0.2
tenant = noauth
"""


class EndToEndTest(ApiProcessCase):
    """API, persister and pipeline as separate processes, with one topic, one database and the shipped
    specifications."""

    TIMEOUT_SCALING_FACTOR = 2  # starting Spark takes minutes on a busy machine
    start_persister = test_monascaclient.TestMonascaclient.start_persister

    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir(tempfile.gettempdir())).path)
        self.url = f"sqlite:///{self.folder}/monasca.sqlite"
        open_storage(StorageSettings("sqlite", self.url)).upgrade()
        self.served = self.start_api(more=f"[database]\nconnection = {self.url}")
        self.start_persister(self.url)
        self.served.wait_until_ready()
        self.hour_ms = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS

    def start_pipeline(self):
        configuration, log = self.folder / "pipeline.conf", self.folder / "pipeline.log"
        servers = self.cluster.client_options("admin")["bootstrap.servers"]
        texts = {"servers": servers, "url": self.url, "topic": self.topic}
        configuration.write_text(_PIPELINE.format(dead_letters=self.rejects, **texts))
        command = [sys.executable, "-m", attached_driver.__name__, "pipeline", "run", "aggregate"]
        session = self.useFixture(SharedSpark()).session
        command += ["--config-file", str(configuration)]
        return start_process(self, command, log, env={**os.environ, **attached_driver.environment(session)})

    def post(self, *readings):
        """Post values of (hours from this hour, minute, host, value)."""
        body = [
            {
                "name": NAME,
                "dimensions": {"hostname": host},
                "timestamp": self.hour_ms + hour * HOUR_MS + minute * 60_000,
                "value": value,
            }
            for hour, minute, host, value in readings
        ]
        self.assertEqual(204, self.served.post(body)[0])

    def answered(self):
        """Return the value, the count, and whether it is provisional, of each hour."""
        start = iso(self.hour_ms - 24 * HOUR_MS)
        path = f"{METRICS}/measurements?name={NAME}_agg&start_time={start}&merge_metrics=true"
        _, _, answer = self.served.request("GET", path)
        rows = [row for element in answer["elements"] for row in element["measurements"]]
        return [(when, round(value, 6), meta["record_count"], meta.get("provisional")) for when, value, meta in rows]

    def wanted(self):
        """Return the results of the plain reference for the messages that the API has sent to Kafka."""
        pre_rows, rows = (
            [json.loads(line) for line in SHIPPED.joinpath(f"{name}_specs.jsonl").read_text().splitlines()]
            for name in ("pre_transform", "transform")
        )
        log = [(record.value, record.partition, record.offset) for record in self.log(self.topic, self.partitions)]
        found = expected(pre_rows, rows, log)
        marks = {self.hour_ms: "true"}
        return sorted((iso(key[1]), row[0], row[1], marks.get(key[1])) for key, row in found.items())

    # Rule 31
    def test_the_api_returns_hourly_aggregates_which_late_data_corrects(self):
        self.post((-3, 5, "a", 1000.0), (-3, 25, "a", 2000.0), (-3, 25, "b", 7000.0), (0, 0, "a", 5.0))
        pipeline = self.start_pipeline()
        self.wait_until(lambda: len(self.answered()) == 2, seconds=SECONDS)
        self.assertEqual(self.wanted(), self.answered())
        self.post((-3, 45, "b", 9000.0))
        self.wait_until(lambda: self.answered()[0][2] == "4", seconds=SECONDS)
        self.assertEqual(self.wanted(), self.answered())
        self.assertEqual(["4", "1"], [count for _, _, count, _ in self.answered()])
        pipeline.terminate()
        log = self.folder / "pipeline.log"
        self.assertEqual(0, pipeline.wait(SECONDS), log.read_text()[-3000:])
        lines = log.read_text().splitlines()
        answer = [line for line in lines if " INFO monasca_common." in line and "transport" not in line]
        self.assertEqual(2, len(answer), answer)
        start, stop = answer
        for part in ("pipeline aggregate", self.topic, self.url):
            self.assertIn(part, start)
        self.assertRegex(stop, r"pipeline aggregate \S+ stopped: done \d+; left \d+$")
