# SPDX-License-Identifier: Apache-2.0
"""The services of the quickstart: their configuration file and processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from monasca_common.devbroker import DevBrokerError
from monasca_common.devbroker.supervisor import ServerProcess, Supervisor, wait_until

TENANT = "quickstart"
PUBLISH_SECONDS = 2.0
_READY_SECONDS = 60.0
_CAUGHT_UP_SECONDS = 180.0
_COMMAND_SECONDS = 600.0
_POLL_SECONDS = 0.05
_STOP_SECONDS = 10.0
_PERSISTER_GROUPS = ("persister-metrics", "persister-events")

# With an instance id, the process that replaces a killed one takes over its partitions immediately; without it, after
# the session timeout of up to 45 s.
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
linger_ms = 5
publish_timeout_seconds = {publish_seconds}

[database]
connection = sqlite:///{database}

[api]
auth_strategy = noauth
noauth_tenant = {tenant}
port = {port}
workers = 2

[kafka_metrics]
topic = metrics
max_wait_time_seconds = 0.01
group_id = persister-metrics
group_instance_id = quickstart

[kafka_events]
enabled = true
topic = monevents
group_id = persister-events
group_instance_id = quickstart

# One broker has one copy of each message.
[monitoring]
durability_check = off

[spark]
master = local[2]
shuffle_partitions = 2
# A program of one batch starts faster with little compilation.
options = spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC

[pipeline_aggregate]
transform_specs = {folder}/transform_specs.jsonl
pre_transform_specs = {folder}/pre_transform_specs.jsonl
tenant = {tenant}
slack_seconds = 0
# Some acknowledgements are late, so some posts are in the log twice.
duplicates_lookback = 100000

[pipeline_evaluate]
duplicates_lookback = 1000
status_port = {evaluator_port}

[kafka_alarm_history]
topic = alarm-state-transitions
group_id = persister-alarms
group_instance_id = quickstart

[kafka_logs]
enabled = false

[audit]
enabled = true
folder = {folder}/audit
bucket_seconds = 30
grace_seconds = 30
window_seconds = 3600

[lag]
interval_seconds = 2

[dashboard]
login = none
port = {dashboard_port}
interval_seconds = 2
"""

# Only for the notification service, because the other services must not accept addresses of this machine.
_NOTIFICATION = """\
[notification]
allowed_networks = 127.0.0.1/32

[retry_engine]
interval = 1
"""


class ServiceFailed(Exception):
    """A service did not start, or exited; the message contains the end of its log."""


def write_configuration(
    folder: Path, servers: str, port: int, evaluator_port: int, dashboard_port: int
) -> tuple[Path, Path]:
    """Write the configuration file. Return its path and the path of the database. ``port``: the port of the API."""
    path, database = folder / "quickstart.conf", folder / "monasca.sqlite"
    path.write_text(
        _CONFIGURATION.format(
            servers=servers,
            database=database,
            tenant=TENANT,
            port=port,
            evaluator_port=evaluator_port,
            dashboard_port=dashboard_port,
            folder=folder,
            publish_seconds=PUBLISH_SECONDS,
        )
    )
    return path, database


def write_notification_configuration(folder: Path) -> Path:
    """Write the second configuration file of the notification service."""
    path = folder / "notification.conf"
    path.write_text(_NOTIFICATION)
    return path


def run_command(*words: str, configuration: Path, more: Path | None = None) -> str:
    """Run a command of `monasca-common` and return its output. Raises `ServiceFailed`.

    ``more``: a second configuration file.
    """
    command = _command(*words, files=[configuration] if more is None else [configuration, more])
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise ServiceFailed(f"monasca-common {' '.join(words)} took longer than {_COMMAND_SECONDS:.0f} s") from None
    if done.returncode:
        raise ServiceFailed(f"monasca-common {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def unread_messages(configuration: Path) -> int:
    """Return the number of metrics and events in Kafka that the persister has not read. Raises `ServiceFailed`."""
    shown = (
        run_command("offsets", "show", "--group", group, "-f", "json", configuration=configuration)
        for group in _PERSISTER_GROUPS
    )
    return sum(partition["left"] for partitions in shown for partition in json.loads(partitions))


def read_url(url: str) -> str | None:
    """Return the body of the response, or ``None`` if the request fails."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except (OSError, http.client.HTTPException):
        return None


class ServiceProcess(ServerProcess):
    """A command that runs until `stop`. It ends together with this process, even if this process is killed.

    ``name``: the words after ``monasca-common``, such as ``persister`` or ``pipeline run evaluate``. ``more``:
    additional configuration files. The output of the command and of its Java processes is written to a file next to the
    configuration; errors name this file.
    """

    def __init__(self, supervisor: Supervisor, name: str, configuration: Path, *more: Path) -> None:
        words = [word for word in name.split() if not word.startswith("-")]
        super().__init__(supervisor, configuration.with_name(f"{'-'.join(words)}.log"))
        self.name = name
        self.launch(_command(*name.split(), files=[configuration, *more]))

    def kill_workers(self) -> int:
        """Send SIGKILL to the worker processes and return their number. The service replaces them."""
        import psutil  # requires an extra that only this method needs

        workers = psutil.Process(self.pid).children()
        for worker in workers:
            worker.kill()
        return len(workers)

    def check(self) -> None:
        """Raise `ServiceFailed` if the command has ended."""
        status = self.status
        if status is not None:
            raise ServiceFailed(f"{self.name} ended with {status}: {self.last_log_line()}")

    def finished(self) -> str | None:
        """Return the output of a command that has ended, or ``None`` while it runs. Raises `ServiceFailed`."""
        status = self.status
        if status:
            self.check()
        return None if status is None else self._log.read_text(errors="replace")

    def wait_until_answers(self, url: str) -> None:
        self.wait_until(lambda: read_url(url) is not None, _READY_SECONDS, "did not respond")

    def wait_until_caught_up(self, metrics_url: str) -> None:
        """Wait until a job has completed a batch and has nothing left to read."""
        self.wait_until(lambda: _caught_up(metrics_url), _CAUGHT_UP_SECONDS, "completed no batch")

    def wait_until(self, holds: Callable[[], object], seconds: float, failure: str) -> None:
        """Wait while the command runs. Raises `ServiceFailed`."""

        def held() -> object:
            self.check()
            return holds()

        if not wait_until(held, seconds, every=_POLL_SECONDS):
            raise ServiceFailed(f"{self.name} {failure} within {seconds:.0f} s: {self.last_log_line()}")

    def stop(self) -> None:
        """Send SIGTERM and wait. The supervisor kills a process that is still running."""
        with contextlib.suppress(DevBrokerError):
            self.signal(signal.SIGTERM)
            self.ended_within(_STOP_SECONDS)

    def last_log_line(self) -> str:
        """Return the last line of the log, preferably from the command instead of Java, and the path of the log."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        own = [line for line in lines if line.startswith("monasca-common ")]
        last = (own or lines or ["the log is empty"])[-1]
        return f"{last} (log: {self._log})"


def _caught_up(metrics_url: str) -> bool:
    gauges = dict(re.findall(r"(?m)^monasca_pipeline_(\w+){[^}]*} (\S+)$", read_url(metrics_url) or ""))
    return float(gauges.get("last_batch_time_seconds", 0)) > 0 and float(gauges.get("behind_offsets", 1)) == 0


def _command(*words: str, files: Sequence[Path]) -> list[str]:
    named = [word for file in files for word in ("--config-file", str(file))]
    return [sys.executable, "-m", "monasca_common.cli.main", *words, *named]
