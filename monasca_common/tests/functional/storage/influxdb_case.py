# SPDX-License-Identifier: Apache-2.0
"""A real InfluxDB 1.x for tests, from Debian's package ``influxdb``."""

import atexit
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from http import HTTPStatus
from pathlib import Path

from oslotest import base

from monasca_common.devbroker.ports import free_ports
from monasca_common.models.rows import AlarmTransition, Measurement
from monasca_common.models.series import Series, series_id
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.contracts.storage import Database
from monasca_common.tests.contracts.storage.database import canonical
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
_numbers = itertools.count()


def server():
    if not _shared:
        _shared.append(InfluxServer())
    return _shared[0]


class InfluxDatabase(Database):
    def __init__(self, defer):
        super().__init__(defer)
        self.name = f"monasca {next(_numbers)}"
        url = f"influxdb://127.0.0.1:{server().http_port}/{self.name}"
        self.settings = StorageSettings("influxdb", url)

    def prepare(self):
        self.storage().upgrade()
        self._defer(server().query, f'DROP DATABASE "{self.name}"')

    def rows(self, kind):
        table = "/.*/" if kind is Kind.METRICS else "alarm_state_history"
        # Tags are separate from fields, which can have the same names.
        found = server().query(f"SELECT * FROM {table} GROUP BY *", self.name)
        read = _measurement if kind is Kind.METRICS else _transition
        wanted = [series for series in found if (series["name"] == "alarm_state_history") != (kind is Kind.METRICS)]
        return [
            read(series["name"], series["tags"], dict(zip(series["columns"], values, strict=True)))
            for series in wanted
            for values in series["values"]
        ]


def _measurement(name, tags, fields):
    tags = {key: value for key, value in tags.items() if value}
    tenant, region = tags.pop("_tenant_id"), tags.pop("_region", "")
    series = Series(series_id(tenant, region, name, tags), tenant, region, name, tags)
    value_meta = None if fields["value_meta"] == "{}" else canonical(fields["value_meta"])
    value = float(fields.get("value_text") or fields["value"])
    return Measurement(series, fields["time"], value, value_meta, fields["version"])


def _transition(_, tags, fields):
    row = AlarmTransition(
        time_ms=fields.pop("time"),
        tenant=tags["tenant_id"],
        alarm_id=tags["alarm_id"],
        link=fields.pop("link") or None,
        lifecycle_state=fields.pop("lifecycle_state") or None,
        metrics=canonical(fields.pop("metrics")),
        sub_alarms=canonical(fields.pop("sub_alarms")),
        **{name: value for name, value in fields.items() if name not in ("message_id", "reason_data")},
    )
    return bytes.fromhex(fields["message_id"]), row


def skip_without_influxdb(case):
    if shutil.which("influxd") is None:
        print(_MISSING, file=sys.stderr)  # noqa: T201 - show which tests did not run
        case.skipTest(_MISSING)


class InfluxdbTestCase(base.BaseTestCase):
    """``self.database`` is an empty database, on a server that other tests share."""

    def setUp(self):
        super().setUp()
        skip_without_influxdb(self)
        self.database = InfluxDatabase(self.addCleanup)
        self.database.prepare()
