# SPDX-License-Identifier: Apache-2.0
"""A real InfluxDB 1.x for tests, from Debian's package ``influxdb``."""

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from http import HTTPStatus
from pathlib import Path

from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.waiting import wait_until_ready
from monasca_common.tests.web import fetch

_MISSING = "InfluxDB is not installed: no `influxd` on the PATH (Debian's package `influxdb` has it)"
_TEMPORARY = tempfile.gettempdir()  # of the process; the folder of a test is removed before the next test
_CONFIGURATION = """
reporting-disabled = true
bind-address = "127.0.0.1:{rpc_port}"
[meta]
  dir = "{folder}/meta"
[data]
  dir = "{folder}/data"
  wal-dir = "{folder}/wal"
  query-log-enabled = false
[http]
  bind-address = "127.0.0.1:{http_port}"
  log-enabled = false
[monitor]
  store-enabled = false
[logging]
  level = "error"
"""


class InfluxServer:
    """The server is started by the first test of a process that needs it, and ends with the process."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="influxdb-", dir=_TEMPORARY))
        self.http_port, rpc_port = free_ports(2)
        configuration = self.folder / "influxdb.conf"
        configuration.write_text(
            _CONFIGURATION.format(folder=self.folder, http_port=self.http_port, rpc_port=rpc_port), encoding="utf-8"
        )
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["influxd", "-config", str(configuration)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip
        atexit.register(self.stop)
        wait_until_ready(self._responds, self.process.poll, self.folder / "log")

    def _responds(self):
        return fetch(f"http://127.0.0.1:{self.http_port}/ping")[0] == HTTPStatus.NO_CONTENT

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def query(self, text, database=""):
        """Return the series in InfluxDB's format; raise for an error."""
        parameters = urllib.parse.urlencode({"q": text, "db": database, "epoch": "ms"})
        [result] = json.loads(fetch(f"http://127.0.0.1:{self.http_port}/query", parameters.encode())[1])["results"]
        if "error" in result:
            raise RuntimeError(result["error"])
        return result.get("series", [])


_shared: list[InfluxServer] = []


def server():
    if not _shared:
        _shared.append(InfluxServer())
    return _shared[0]


def skip_without_influxdb(case):
    if shutil.which("influxd") is None:
        print(_MISSING, file=sys.stderr)  # noqa: T201 - show which tests did not run
        case.skipTest(_MISSING)
