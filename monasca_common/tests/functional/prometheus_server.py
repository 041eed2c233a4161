# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus as a receiver of remote write."""

import json
import shutil
import urllib.parse
from collections import Counter
from pathlib import Path

import fixtures
import yaml

from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.waiting import PATIENCE_SECONDS, wait_until_ready
from monasca_common.tests.web import fetch, is_ok

MISSING = None if shutil.which("prometheus") else "prometheus is missing: apt-get install prometheus"


def samples_of(url, selector='{__name__=~".+"}'):
    """Return the samples of the last day: labels, time in ms, and value."""
    found = Counter()
    query = urllib.parse.urlencode({"query": f"{selector}[1d]"})
    for series in json.loads(fetch(f"{url}/api/v1/query?{query}")[1])["data"]["result"]:
        labels = tuple(sorted(series["metric"].items()))
        for seconds, value in series["values"]:
            found[labels, round(seconds * 1000), float(value)] += 1
    return found


class PrometheusServer(fixtures.Fixture):
    """``configuration``: see `configure`. ``data``: the folder of its samples; ``None``: a temporary one. ``program``:
    its name or path.

    The samples survive `kill` and `start`.
    """

    def __init__(self, configuration, *, data=None, program="prometheus"):
        self._first, self._data, self._program = configuration, data, program
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"

    def _setUp(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.log = folder / "prometheus.log"
        self.configuration = folder / "prometheus.yml"
        self._data = self._data or folder / "data"
        self.configure(self._first)
        self.start()

    def configure(self, content):
        """Write the content of the configuration file, which `reload` or `start` reads."""
        self.configuration.write_text(yaml.safe_dump(content))

    def start(self):
        """Start the process, and wait until it accepts samples."""
        command = [
            self._program,
            f"--config.file={self.configuration}",
            f"--storage.tsdb.path={self._data}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-remote-write-receiver",
            "--web.enable-lifecycle",
        ]
        self._process = start_process(self, command, self.log)
        wait_until_ready(lambda: is_ok(f"{self.url}/-/ready"), self._process.poll, self.log)

    def reload(self):
        status, text = fetch(f"{self.url}/-/reload", b"")
        assert status == 200, text

    def kill(self):
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
