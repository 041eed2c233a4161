# SPDX-License-Identifier: Apache-2.0
"""The published persister's file with other addresses and topics, from a real Kafka to a real InfluxDB."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

from monasca_common.tests.functional.persister.persister_case import SECONDS, PersisterCase
from monasca_common.tests.functional.storage.influxdb_server import server
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit import test_published_files

_SAMPLE = test_published_files.SAMPLES / "persister-9.0.0.conf"
_PASSWORD = "hush"
_names = itertools.count()


@periodic("runs a complete upgrade; the unit tests read the old files")
class TestOldFile(PersisterCase):
    database = "influxdb"

    def prepare_database(self):
        self.name = f"old_{os.getpid()}_{next(_names)}"
        self.addCleanup(server().query, f'DROP DATABASE "{self.name}"')

    def rows(self):
        """Return the number of each stored metric."""
        series = server().query('SELECT value FROM "cpu.percent"', self.name)
        return [time_ms - self.base_ms for each in series for time_ms, _ in each["values"]]

    def old_file(self):
        alarms = self.fixture.topic(1)
        self.cluster.create_topic(f"{alarms}.dlq", 1)
        text = _SAMPLE.read_text(encoding="utf-8")
        for old, new in (
            ("log_config_append = /etc/monasca/persister-logging.conf\n", ""),  # it names a file of that machine
            ("uri = kafka:9092", f"uri = {self.servers}"),
            ("topic = metrics", f"topic = {self.topic}"),
            ("group_id = 1_metrics", f"group_id = {self.group}"),
            ("topic = alarm-state-transitions", f"topic = {alarms}"),
            ("group_id = 1_events", f"group_id = {self.group}-alarms"),
            ("max_wait_time_seconds = 15", "max_wait_time_seconds = 1"),
            ("database_name = mon", f"database_name = {self.name}"),
            ("ip_address = influxdb\nport = 8086", f"ip_address = 127.0.0.1\nport = {server().http_port}"),
            ("\npassword = password", f"\npassword = {_PASSWORD}"),
        ):
            self.assertIn(old, text)
            text = text.replace(old, new)
        path = self.folder / "persister.conf"
        path.write_text(text, encoding="utf-8")
        return path

    def test_an_old_file_works_and_its_password_is_not_shown(self):
        path = self.old_file()
        command = pathlib.Path(sys.executable).with_name("monasca-common")
        made = subprocess.run(
            [command, "db", "upgrade", "-f", "json", "--config-file", path],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        self.assertEqual(0, made.returncode, made.stderr)
        [row] = json.loads(made.stdout)
        self.assertEqual((None, None), (row["before"], row["after"]))  # a driver without a schema
        self.publish(range(200))

        persister = self.spawn("persister", path, 0)

        self.wait_until(lambda: len(self.rows()) >= 200, what="200 rows")
        self.assertEqual(set(range(200)), set(self.rows()))
        self.assert_ends_in_order(persister)
        self.assertEqual([], self.dead_letters())
        log = persister.log.read_text()
        place = f"influxdb://127.0.0.1:{server().http_port}/{self.name}"
        self.assertIn(f"read as [storage] driver = influxdb and [database] connection = {place}, with user", log)
        self.assertNotIn(_PASSWORD, log + made.stdout + made.stderr)
