# SPDX-License-Identifier: Apache-2.0
"""A Prometheus server that scrapes itself and writes to the API: the counts of its samples and of their rows."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from monasca_common.devbroker.supervisor import ServerProcess, Supervisor, wait_until
from monasca_common.quickstart.rows import select
from monasca_common.quickstart.services import ServiceFailed, read_url

_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 1.0
_SETTLED_SECONDS = 2  # after this time, Prometheus has stored a sample
_CONFIGURATION = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: prometheus
    static_configs: [{{targets: ['{address}']}}]
remote_write:
  - url: http://127.0.0.1:{api_port}/api/v1/write
    queue_config: {{batch_send_deadline: 1s}}
"""
_SAMPLES = '{__name__=~".+"}[2h]'
# Prometheus does not count the ends of series, whose rows have a value_meta.
_ROWS = "SELECT count(*) FROM measurements WHERE time <= ? AND value_meta IS NULL"


@dataclass(frozen=True, slots=True)
class PrometheusSummary:
    """``samples``: the number in Prometheus. ``rows``: the number in the database up to the same time."""

    samples: int
    rows: int

    @property
    def good(self) -> bool:
        return 0 < self.samples == self.rows


def check_installed() -> None:
    """Raise `ServiceFailed` if Prometheus is missing."""
    if shutil.which("prometheus") is None:
        raise ServiceFailed("prometheus is not on the PATH: install it, on Debian with apt-get install prometheus")


def start(supervisor: Supervisor, folder: Path, *, port: int, api_port: int) -> None:
    """Start Prometheus with its files in ``folder``, and wait for its first samples. Raises `ServiceFailed`."""
    configuration, address = folder / "prometheus.yml", f"127.0.0.1:{port}"
    configuration.write_text(_CONFIGURATION.format(address=address, api_port=api_port))
    server = ServerProcess(supervisor, folder / "prometheus.log")
    files = (f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'prometheus'}")
    server.launch(["prometheus", *files, f"--web.listen-address={address}"])
    if not server.ready_within(_PATIENCE_SECONDS, lambda: _samples(port, int(time.time()))):
        raise ServiceFailed(f"Prometheus has no samples: {server.log_tail()}")


def compare(port: int, database: Path) -> PrometheusSummary:
    """Count the samples up to now and their rows, once they are equal or after a minute."""
    until = int(time.time()) - _SETTLED_SECONDS
    summary = PrometheusSummary(0, 0)

    def equal() -> bool:
        nonlocal summary
        [(rows,)] = select(database, _ROWS, until * 1000)
        summary = PrometheusSummary(_samples(port, until), rows)
        return summary.good

    wait_until(equal, _PATIENCE_SECONDS, every=_POLL_SECONDS)
    return summary


def _samples(port: int, until: int) -> int:
    query = urlencode({"query": _SAMPLES, "time": until})
    found = json.loads(read_url(f"http://127.0.0.1:{port}/api/v1/query?{query}") or '{"data": {"result": []}}')
    return sum(len(series["values"]) for series in found["data"]["result"])
