# SPDX-License-Identifier: Apache-2.0
"""A Telegraf, built from its Go modules, writes to the API, while the API is killed and Kafka's responses are lost:
each sample is one row."""

import http.client
import time
from http import HTTPStatus
from pathlib import Path

from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.checker import each_once
from monasca_common.tests.example_case import EXAMPLES
from monasca_common.tests.functional.go_programs import MISSING, built
from monasca_common.tests.functional.persister.persister_case import SECONDS
from monasca_common.tests.functional.persister.test_otlp import OtlpApiCase
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.periodic import periodic

_SOURCES = Path(__file__).with_name("telegraf")
_PLUGINS = "inputs.http_listener_v2,outputs.http,parsers.influx,serializers.prometheusremotewrite"
_INPUT = """\
  omit_hostname = true
  flush_interval = "500ms"
[[inputs.http_listener_v2]]
  service_address = "tcp://127.0.0.1:{port}"
  data_format = "influx"
"""
_LINES = 20  # in each post, so that the API is usually killed in the middle of a batch
_ROWS = "SELECT s.name, s.dimensions, m.time, m.value FROM measurements m JOIN series s ON s.id = m.series_id"


@periodic("builds Telegraf; PrometheusTest sends the same requests")
class TelegrafTest(OtlpApiCase):
    def setUp(self):
        if MISSING:
            self.skipTest(MISSING)
        super().setUp()
        (self.input_port,) = free_ports(1)
        configuration = self.folder / "telegraf.conf"
        configuration.write_text(self.configuration())
        program = built(_SOURCES, "github.com/influxdata/telegraf/cmd/telegraf", f"-tags=custom,{_PLUGINS}")
        process = start_process(self, [program, "--config", configuration], self.folder / "telegraf.log")
        self.wait_until(lambda: process.poll() is not None or self.post("") is not None)
        self.assertIsNone(process.poll())

    def configuration(self):
        """Return the documented configuration with this API and an input."""
        documented = (EXAMPLES / "prometheus" / "telegraf.conf").read_text()
        agent, outputs = documented.split("[[outputs.http]]")
        outputs = outputs.replace("http://api.example.org:8070", self.url_of_api)
        return f"{agent}{_INPUT.format(port=self.input_port)}[[outputs.http]]{outputs}"

    def post(self, lines):
        """Return the status of the response; None without a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.input_port, timeout=SECONDS)
        try:
            connection.request("POST", "/telegraf", lines.encode())
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    def test_each_sample_of_telegraf_is_a_row_although_the_api_is_killed(self):
        wanted = []

        def send(number):
            start_ms, lines = time.time_ns() // 1_000_000, []
            for turn in range(_LINES):
                time_ms, value = start_ms + turn, number + turn / 32
                lines.append(f"shop,region=north orders={number}i,seconds={value} {time_ms * 1_000_000}")
                wanted.append(("shop_orders", '{"region":"north"}', time_ms, float(number)))
                wanted.append(("shop_seconds", '{"region":"north"}', time_ms, value))
            self.assertEqual(HTTPStatus.NO_CONTENT, self.post("\n".join(lines)))

        self.disturbed(send)
        self.wait_until(lambda: len(self.stored(_ROWS)) >= len(wanted))
        with each_once():
            self.assertEqual(sorted(wanted), self.stored(_ROWS))
        self.assertGreater(len(read_topic(self.cluster, self.topic, 2)), len(wanted))  # repeats reached Kafka
        self.assertEqual([], read_topic(self.cluster, self.dlq))
        self.assertEqual(0, self.persister.counter("rows_total", outcome="conflicting"))
        self.assert_ends_in_order(self.persister)
