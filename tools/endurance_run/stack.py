# SPDX-License-Identifier: Apache-2.0
"""The complete stack on this machine: which processes run, with which configuration, ports and folders."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from monasca_common.devbroker import ApicurioRegistry, KafkaCluster, ports
from monasca_common.devbroker.supervisor import ServerProcess, Supervisor
from monasca_common.models import avro
from monasca_common.quickstart import aggregates
from monasca_common.quickstart.services import ServiceFailed, run_command
from monasca_common.tests.functional import nginx
from monasca_common.tests.kafka_cluster import ProxiedKafkaCluster
from monasca_common.tests.postgresql_server import PostgresqlServer

TENANT = "endurance"
PARTITIONS = 4
SESSION_SECONDS = 10.0
GRACE_SECONDS = 90
_DATABASE = "monasca"
# The totals of `audit serve` and of the dashboard grow until their window is full: within the warm-up of an hour's run.
_AUDIT_WINDOW_SECONDS = 600
_ENVIRONMENT = ("MALLOC_ARENA_MAX=2",)  # as in deploy/
_DISK_BYTES = 2 << 30
_READY_SECONDS = 480.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.2
_FAKETIME = "*/faketime/libfaketimeMT.so.1"  # Debian's package faketime
_INITIALIZED = ("api", "persister", "pipeline", "lag", "notification")

_SHARED = """\
[kafka]
bootstrap_servers = {servers}
session_timeout_seconds = {session}
linger_ms = 5

[storage]
driver = postgresql

[database]
connection = {database}

[api]
auth_strategy = noauth
noauth_tenant = {tenant}
access_log = off

[kafka_metrics]
topic = metrics
group_id = persister-metrics
max_wait_time_seconds = 0.2

[kafka_alarm_history]
topic = alarm-state-transitions
group_id = persister-alarms

[kafka_events]
enabled = false

[kafka_logs]
enabled = false

[spark]
master = local[1]
shuffle_partitions = 1
# The heap has its size from the start: garbage would look like a leak.
options = spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms1g -XX:+AlwaysPreTouch

[pipeline_aggregate]
transform_specs = {folder}/transform_specs.jsonl
pre_transform_specs = {folder}/pre_transform_specs.jsonl
tenant = {tenant}
trigger_seconds = 10
duplicates_lookback = 10000

[pipeline_evaluate]
trigger_seconds = 2
duplicates_lookback = 10000
transitions_format = avro

[pipeline_archive]
location = {folder}/archive
trigger_seconds = 30

[schema_registry]
url = {registry}
subject_name_strategy = topic
mixed_topics = alarm-state-transitions

[mirror]
topics = metrics

[mirror_source]
bootstrap_servers = {servers}

[mirror_target]
bootstrap_servers = {mirror}

[dashboard]
login = none

[notification]
allowed_networks = 127.0.0.1/32

[retry_engine]
interval = 1

[audit]
enabled = true
folder = {folder}/journals/commands
bucket_seconds = 30
grace_seconds = {grace}
window_seconds = 86400

[lag]
interval_seconds = 5

# Its check at each start of a service takes seconds; the cluster has three copies.
[monitoring]
durability_check = off

[sink]
mapping_file = {folder}/sink.toml
group_id = sink
"""

# Each process has its own port for metrics, its own journal of audit reports, and its own name in its groups.
_OWN = """\
[{section}]
status_port = {port}
{more}
[audit]
folder = {folder}
window_seconds = {window}
"""

_MAPPING = """\
[sink_metrics]
topic = "metrics"

[sink_metrics.columns]
name = {type = "text", from = "value.metric.name"}
host = {type = "text", from = "value.metric.dimensions.hostname"}
time = {type = "timestamp", from = "value.metric.timestamp"}
value = {type = "double", from = "value.metric.value"}
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A command. ``section``: the section of its ``status_port``. ``groups``: sections that have a
    ``group_instance_id``.
    ``copies``: the number of instances; of two, faults affect only the second. ``is_job``: it is ready only after a
      batch, which needs messages."""

    command: str
    section: str
    copies: int = 1
    groups: tuple[str, ...] = ()
    is_job: bool = False


SERVICES = {
    "api": Service("api", "api", 2),
    "persister": Service("persister", "persister", 2, ("kafka_metrics", "kafka_alarm_history")),
    "sink": Service("sink run", "sink", 2, ("sink",)),
    "notification": Service("notification", "notification", 2, ("kafka_notifications",)),
    "evaluate": Service("pipeline run evaluate", "pipeline_evaluate", is_job=True),
    "aggregate": Service("pipeline run aggregate", "pipeline_aggregate", is_job=True),
    "archive": Service("pipeline run archive", "pipeline_archive", is_job=True),
    "mirror": Service("mirror run", "mirror"),
    "dashboard": Service("dashboard", "dashboard"),
    "audit-count": Service("audit count", "audit_count"),
    "audit": Service("audit serve", "audit"),
    "lag": Service("lag serve", "lag"),
}


class Instance:
    """A process of a service. ``is_victim``: faults kill, freeze and skew it, but never the other copy."""

    def __init__(self, name: str, service: Service, folder: Path, port: int, supervisor: Supervisor) -> None:
        self.name = name
        self.kind = name.partition(".")[0]
        self.is_victim = name.endswith(".2")
        self.port = port
        self.log = folder / "logs" / f"{name}.log"
        self._process = ServerProcess(supervisor, self.log)
        own = folder / f"{name}.conf"
        self._command = [
            "env",
            *_ENVIRONMENT,
            sys.executable,
            "-m",
            "monasca_common.cli.main",
            *service.command.split(),
        ]
        self._command += ["--config-file", str(folder / "monasca.conf"), "--config-file", str(own)]
        more = f"port = {ports.free_ports(1)[0]}\n" if self.kind in ("api", "dashboard") else ""
        self.api_port = int(more.split()[-1]) if more else 0
        for section in service.groups:
            identity = f"group_instance_id = {name}\n"
            more += identity if section == service.section else f"[{section}]\n{identity}"
        journal = folder / "journals" / name
        journal.mkdir(parents=True, exist_ok=True)
        if self.kind == "audit":  # section with the port and the folder
            own.write_text(
                f"[audit]\nstatus_port = {port}\nfolder = {journal}\nwindow_seconds = {_AUDIT_WINDOW_SECONDS}\n"
            )
        else:
            own.write_text(
                _OWN.format(section=service.section, port=port, more=more, folder=journal, window=_AUDIT_WINDOW_SECONDS)
            )

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def start(self, *, skew_seconds: int = 0) -> None:
        """Start the process. ``skew_seconds``: its clock differs by this time."""
        library = faketime_library()
        skew = (
            ["env", f"LD_PRELOAD={library}", f"FAKETIME={skew_seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
            if skew_seconds
            else []
        )
        self._process.launch([*skew, *self._command])

    def tree(self) -> list[psutil.Process]:
        """Return the process and its descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        return []

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process and its descendants."""
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signum)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ended_within(_STOP_SECONDS)

    def terminate(self) -> None:
        self._process.signal(signal.SIGTERM)

    def ended_within(self, seconds: float) -> bool:
        return self._process.ended_within(seconds)

    def stop(self) -> None:
        """Send SIGTERM, and then SIGKILL if the process does not end in time."""
        self.terminate()
        if not self.ended_within(_STOP_SECONDS):
            self.kill()

    @property
    def is_running(self) -> bool:
        return self._process.running

    def check(self) -> None:
        if not self.is_running:
            raise ServiceFailed(f"{self.name} has ended; its log ends with\n{self._process.log_tail()}")

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not self.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"{self.name} was not ready within {_READY_SECONDS:.0f} s; its log ends with\n"
                    f"{self._process.log_tail()}"
                )
            time.sleep(_POLL_SECONDS)


def faketime_library() -> Path | None:
    return next(Path("/usr/lib").glob(_FAKETIME), None)


class Stack:
    """The servers and services in ``folder``, which keeps their data for a resumed run."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.kafka = ProxiedKafkaCluster(3, data_dir=folder / "kafka", start_timeout=_READY_SECONDS)
        self.mirror = KafkaCluster(1, data_dir=folder / "mirror", start_timeout=_READY_SECONDS)
        self.registry = ApicurioRegistry(start_timeout=_READY_SECONDS)
        self.postgresql = PostgresqlServer(data_dir=folder / "postgresql", settings={"max_connections": "300"})
        self.instances: dict[str, Instance] = {}
        self.api_port = 0
        self.has_small_disk = False
        self._say = say

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start everything, and stop it at the end. Even if this process is killed, no process remains."""
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            self._say("starting four Kafka nodes, the schema registry and PostgreSQL")
            for server in (self.kafka, self.mirror, self.registry):
                opened.enter_context(server)
            self._mount()
            opened.enter_context(self.postgresql)
            self._configure()
            self.register_schemas()
            supervisor = Supervisor()
            opened.callback(supervisor.close)
            self._start_services(supervisor)
            self._start_nginx(supervisor)
            opened.callback(self._stop)
            yield

    @property
    def url(self) -> str:
        """The URL of the database for psycopg."""
        return self.postgresql.url(_DATABASE).replace("+psycopg", "")

    @property
    def configuration(self) -> Path:
        return self.folder / "monasca.conf"

    def ended(self) -> list[str]:
        """Return the names of the instances that have ended by themselves."""
        return [name for name, instance in self.instances.items() if not instance.is_running]

    def victims(self) -> list[Instance]:
        return [each for each in self.instances.values() if each.is_victim]

    def _mount(self) -> None:
        """Mount a file system of limited size for the tables, which requires root."""
        self.disk.mkdir(exist_ok=True)
        if not os.path.ismount(self.disk):
            option = f"size={_DISK_BYTES},mode=0777"
            mount = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(self.disk)]
            if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
                return
        self.has_small_disk = True

    def unmount(self) -> None:
        if os.path.ismount(self.disk):
            subprocess.run(["umount", "-l", str(self.disk)], check=False)

    def _configure(self) -> None:
        fresh = not self.configuration.exists()
        self.configuration.write_text(
            _SHARED.format(
                servers=self.kafka.bootstrap_servers,
                mirror=self.mirror.bootstrap_servers,
                registry=self.registry.url,
                session=SESSION_SECONDS,
                database=self.postgresql.url(_DATABASE),
                tenant=TENANT,
                folder=self.folder,
                grace=GRACE_SECONDS,
            )
        )
        if not fresh:
            return
        aggregates.write_specifications(self.folder)
        (self.folder / "sink.toml").write_text(_MAPPING)
        self._say("creating the database, the tables and the topics")
        self.postgresql.execute(f"CREATE DATABASE {_DATABASE}")
        if self.has_small_disk:
            self.postgresql.execute(f"CREATE TABLESPACE small LOCATION '{self._tables()}'")
            self.postgresql.execute(f"ALTER DATABASE {_DATABASE} SET default_tablespace = small")
        services = [word for name in _INITIALIZED for word in ("--service", name)]
        run_command("init", "--execute", "--partitions", str(PARTITIONS), *services, configuration=self.configuration)
        run_command("sink", "plan", "--execute", configuration=self.configuration)

    def register_schemas(self) -> None:
        """Register the schemas, which the registry keeps in memory."""
        file = self.folder / "transitions.avsc"
        file.write_text(avro.schema_text("transitions"))
        run_command(
            "schema",
            "register",
            "alarm-state-transitions-value",
            str(file),
            "--execute",
            configuration=self.configuration,
        )

    def _tables(self) -> Path:
        """Return the folder of the tablespace, which belongs to the user of the server."""
        folder = self.disk / "tables"
        folder.mkdir(mode=0o700)
        owner = self.postgresql.folder.stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        return folder

    def _start_services(self, supervisor: Supervisor) -> None:
        names = [
            (f"{name}.{number}" if service.copies > 1 else name, service)
            for name, service in SERVICES.items()
            for number in range(1, service.copies + 1)
        ]
        self._say(f"starting {len(names)} services")
        for (name, service), port in zip(names, ports.free_ports(len(names)), strict=True):
            self.instances[name] = Instance(name, service, self.folder, port, supervisor)
            self.instances[name].start()
        for instance in self.instances.values():
            if not SERVICES[instance.kind].is_job:
                instance.wait_until_ready()

    def wait_for_jobs(self) -> None:
        """Wait until each job has handled a batch. Raises `ServiceFailed`."""
        for instance in self.instances.values():
            if SERVICES[instance.kind].is_job:
                instance.wait_until_ready()

    def _start_nginx(self, supervisor: Supervisor) -> None:
        folder = self.folder / "nginx"
        folder.mkdir(exist_ok=True)
        self.api_port, tls_port = ports.free_ports(2)
        apis = [each.api_port for each in self.instances.values() if each.kind == "api"]
        main = nginx.write_configuration(folder, self.api_port, tls_port, apis)  # type: ignore[no-untyped-call]
        if nginx.PROGRAM is None:
            raise ServiceFailed(nginx.MISSING)
        supervisor.start([nginx.PROGRAM, "-p", str(folder), "-c", str(main)], log=self.folder / "logs" / "nginx.log")
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((ports.HOST, self.api_port)):
                return
            time.sleep(_POLL_SECONDS)
        raise ServiceFailed(f"nginx does not listen: see {self.folder}/logs/nginx.log")

    def _stop(self) -> None:
        for instance in self.instances.values():
            instance.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for instance in self.instances.values():
            instance.ended_within(max(0.0, deadline - time.monotonic()))
