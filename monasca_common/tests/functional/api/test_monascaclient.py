# SPDX-License-Identifier: Apache-2.0
"""python-monascaclient with a running API: created objects are read again, through Kafka and the persister."""

import sys
import tempfile
import time
import types
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import fixtures
from keystoneauth1 import session, token_endpoint
from monascaclient import client
from monascaclient.v2_0 import shell
from osc_lib import exceptions

from monasca_common.api.query import iso
from monasca_common.devbroker import ports
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.functional.api.api_case import ApiProcessCase
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS, wait_until_ready
from monasca_common.tests.web import fetch

_HOSTS = [f"host-{number}" for number in range(5)]
_ROWS = 7  # per host

_PERSISTER = """\
[kafka]
bootstrap_servers = {servers}
[database]
connection = {url}
[persister]
status_port = {port}
[kafka_metrics]
topic = {topic}
group_id = {topic}
dead_letter_topic = {dead_letters}
max_wait_time_seconds = 0.05
[kafka_alarm_history]
enabled = false
"""


@periodic("published client; the normal run of tempest calls the same API")
class TestMonascaclient(ApiProcessCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir(tempfile.gettempdir())).path)
        url = f"sqlite:///{self.folder}/monasca.sqlite"
        open_storage(StorageSettings("sqlite", url)).upgrade()
        self.served = self.start_api(more=f"[database]\nconnection = {url}")
        self.start_persister(url)
        self.served.wait_until_ready()
        endpoint = f"http://127.0.0.1:{self.served.port}/v2.0"
        auth = token_endpoint.Token(endpoint, "no user reads this field")
        self.client = client.Client("2_0", session=session.Session(auth=auth), endpoint=endpoint)
        self.metrics = self.client.metrics
        self.base_ms = time.time_ns() // 1_000_000_000 * 1000 - 600_000
        self.start = iso(self.base_ms)

    def start_persister(self, url):
        configuration, log = self.folder / "persister.conf", self.folder / "persister.log"
        (port,) = ports.free_ports(1)
        configuration.write_text(
            _PERSISTER.format(
                servers=self.cluster.client_options("admin")["bootstrap.servers"],
                url=url,
                port=port,
                topic=self.topic,
                dead_letters=self.rejects,
            )
        )
        command = [sys.executable, "-m", "monasca_common.cli.main", "persister", "--config-file", str(configuration)]
        process = start_process(self, command, log)
        self.addCleanup(lambda: self.assertEqual(0, process.wait(PATIENCE_SECONDS), log.read_text()))
        self.addCleanup(process.terminate)
        # Once the service responds, it handles the SIGTERM at the end of a short test.
        wait_until_ready(lambda: fetch(f"http://127.0.0.1:{port}/healthcheck"), process.poll, log)

    def create(self):
        """Post seven rows of each of five hosts, and one of mem, and wait until they can be read."""
        for row in range(_ROWS):
            self.metrics.create(
                jsonbody=[
                    {
                        "name": "cpu",
                        "dimensions": {"hostname": host, "zone": str(number % 2)},
                        "timestamp": self.base_ms + 1000 * row,
                        "value": 10 * number + row,
                    }
                    for number, host in enumerate(_HOSTS)
                ]
            )
        self.metrics.create(
            name="mem",
            dimensions={"hostname": "host-0", "名": "é"},
            timestamp=self.base_ms + 0.75,  # the default of the command-line client is a float
            value=7.5,
            value_meta={"why": "日本"},
        )
        self.wait_until(lambda: len(self.metrics.list_names()) == 2 and len(self.rows(group_by="*")) == 35)

    def rows(self, **how):
        elements = self.metrics.list_measurements(name="cpu", start_time=self.start, **how)
        return [(element["id"], *row) for element in elements for row in element["measurements"]]

    def test_posted_metrics_are_returned_as_lists_measurements_and_statistics(self):
        self.create()
        self.assertEqual([{"name": "cpu"}, {"name": "mem"}], self.metrics.list_names())
        self.assertEqual([{"name": "mem"}], self.metrics.list_names(dimensions={"名": "é"}))

        (mem,) = self.metrics.list(name="mem")
        self.assertEqual(("mem", {"hostname": "host-0", "名": "é"}), (mem["name"], mem["dimensions"]))
        self.assertEqual(5, len(self.metrics.list(name="cpu")))
        some = self.metrics.list(name="cpu", dimensions={"hostname": "host-1|host-3", "zone": ""})
        self.assertEqual({"host-1", "host-3"}, {metric["dimensions"]["hostname"] for metric in some})

        (measured,) = self.metrics.list_measurements(name="mem", start_time=self.start)
        self.assertEqual([[self.start, 7.5, {"why": "日本"}]], measured["measurements"])
        (one,) = self.metrics.list_measurements(
            name="cpu", start_time=self.start, end_time=iso(self.base_ms + 2000), dimensions={"hostname": "host-2"}
        )
        self.assertEqual([20.0, 21.0, 22.0], [row[1] for row in one["measurements"]])

        (summed,) = self.metrics.list_statistics(
            name="cpu", start_time=self.start, statistics="avg,min,max,sum,count", merge_metrics=True, period=3600
        )
        self.assertEqual(["timestamp", "avg", "min", "max", "sum", "count"], summed["columns"])
        self.assertEqual([[self.start, 23.0, 0.0, 46.0, 805.0, 35.0]], summed["statistics"])
        zones = self.metrics.list_statistics(name="cpu", start_time=self.start, statistics="count", group_by="zone")
        self.assertEqual({"0": 21.0, "1": 14.0}, {one["dimensions"]["zone"]: one["statistics"][0][1] for one in zones})

        names = [one["dimension_name"] for one in self.metrics.list_dimension_names()]
        self.assertEqual(["hostname", "zone", "名"], names)
        self.assertEqual(
            [{"dimension_name": "hostname"}, {"dimension_name": "zone"}],
            self.metrics.list_dimension_names(metric_name="cpu"),
        )
        values = self.metrics.list_dimension_values(metric_name="cpu", dimension_name="hostname")
        self.assertEqual(_HOSTS, [one["dimension_value"] for one in values])

    def test_pages_lead_to_the_end_of_each_list(self):
        self.create()
        self.assert_paged(self.metrics.list, limit=2)
        self.assert_paged(self.metrics.list_names, limit=1)
        self.assert_paged(self.metrics.list_dimension_names, limit=1)
        self.assert_paged(self.metrics.list_dimension_values, dimension_name="hostname", limit=2)
        asked = {"name": "cpu", "start_time": self.start, "limit": 3}
        for how in ({"merge_metrics": True}, {"group_by": "zone"}, {"group_by": "*"}):
            self.assert_paged(self.metrics.list_measurements, rows="measurements", **asked, **how)
            self.assert_paged(
                self.metrics.list_statistics, rows="statistics", **asked, **how, statistics="avg,count", period=2
            )

    def assert_paged(self, ask, *, limit, rows=None, **asked):
        """Read all pages by the offset in the next link, like a caller of the client."""
        whole, paged, offset = _flat(ask(**asked), rows), [], {}
        while True:
            page = _flat(ask(**asked, limit=limit, **offset), rows)
            self.assertLessEqual(len(page), limit)
            paged += page
            if self.metrics.next is None:
                break
            self.assertEqual(limit, len(page))
            offset = {"offset": parse_qs(urlsplit(self.metrics.next).query)["offset"][0]}
        self.assertGreater(len(whole), limit)
        self.assertEqual(whole, paged)

    def test_the_command_line_client_prints_the_message_of_an_error(self):
        self.create()
        arguments = types.SimpleNamespace(
            name="cpu", dimensions=None, starttime=self.start, endtime=None, limit=None, offset=None, tenant_id=None
        )
        arguments.merge_metrics = arguments.group_by = None
        error = self.assertRaises(exceptions.CommandError, shell.do_measurement_list, self.client, arguments)
        self.assertIn("merge_metrics=true", str(error))

    def test_alarms_and_notifications_are_empty_lists(self):
        self.assertEqual([], self.client.alarms.list())
        self.assertEqual([], self.client.alarm_definitions.list())
        self.assertEqual([], self.client.notifications.list())
        self.assertEqual([], self.client.alarms.history_list())
        self.assertEqual([], self.client.alarms.history(alarm_id="none"))
        self.assertEqual([[0]], self.client.alarms.count()["counts"])


def _flat(elements, rows):
    if rows is None:
        return elements
    return [(element["id"], element["dimensions"], row) for element in elements for row in element[rows]]
