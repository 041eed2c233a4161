# SPDX-License-Identifier: Apache-2.0
"""A real InfluxDB 1.x for tests, from Debian's package ``influxdb``."""

import atexit
import functools
import json
import shutil
import subprocess
import tempfile
import unittest
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
    """A server that ends with this process."""

    def __init__(self):
        folder = Path(tempfile.mkdtemp(prefix="influxdb-", dir=_TEMPORARY))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.http_port, rpc_port = free_ports(2)
        configuration, log = folder / "influxdb.conf", folder / "log"
        configuration.write_text(_CONFIGURATION.format(folder=folder, http_port=self.http_port, rpc_port=rpc_port))
        with log.open("wb") as output:
            process = subprocess.Popen(["influxd", "-config", configuration], stdout=output, stderr=output, cwd=folder)
        atexit.register(process.wait)
        atexit.register(process.kill)
        ping = f"http://127.0.0.1:{self.http_port}/ping"
        wait_until_ready(lambda: fetch(ping)[0] == HTTPStatus.NO_CONTENT, process.poll, log)

    def query(self, text, database=""):
        """Return the series in InfluxDB's format; raise for an error."""
        parameters = urllib.parse.urlencode({"q": text, "db": database, "epoch": "ms"})
        [result] = json.loads(fetch(f"http://127.0.0.1:{self.http_port}/query", parameters.encode())[1])["results"]
        if "error" in result:
            raise RuntimeError(result["error"])
        return result.get("series", [])


@functools.cache
def server():
    """Return the server that all tests of this process share. Skip the test if InfluxDB is not installed."""
    if shutil.which("influxd") is None:
        raise unittest.SkipTest(_MISSING)
    return InfluxServer()
