# SPDX-License-Identifier: Apache-2.0
"""The base of the persister's functional tests: the command with a real Kafka and a real database."""

import contextlib
import http.client
import json
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

import fixtures
import psutil
import sqlalchemy as sa
from oslotest import base

from monasca_common.devbroker import ports
from monasca_common.kafka import plugins
from monasca_common.kafka.message import Record
from monasca_common.kafka.processor.dead_letters import ERROR_TEXT, ORIGIN_OFFSET, ORIGIN_PARTITION
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.checker import ReportedOutcome, check
from monasca_common.tests.functional import changed_command
from monasca_common.tests.functional.api.api_case import ApiProcess
from monasca_common.tests.functional.persister import persister_mutants
from monasca_common.tests.functional.postgresql import SharedPostgresql
from monasca_common.tests.functional.processes import RunningProcess, start_process
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.postgresql_server import PostgresqlServer
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting
from monasca_common.tests.web import fetch

SECONDS = PATIENCE_SECONDS
QUICK_SESSION_SECONDS = 1.5  # for tests in which another member replaces a dead one
PARTITIONS = 2

_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
session_timeout_seconds = {session}
linger_ms = 0
[storage]
driver = {driver}
write_timeout_seconds = 2
[database]
connection = {url}
"""
_SECTIONS = """\
[persister]
status_port = {port}
[kafka_metrics]
topic = {topic}
group_id = {group}
batch_size = {batch_size}
max_wait_time_seconds = 0.01
{metrics}
{others}
"""

# Report more often, because tests poll the status, and wait longer for the lag, because a broker can be busy.
_CONSTANTS = {
    "monasca_common.runtime.status_board._REPORT_SECONDS": 0.2,
    "monasca_common.runtime.member_health.LAG_SECONDS": 5.0,
}
NO_ALARMS = "[kafka_alarm_history]\nenabled = false"

# A table that stores a row twice if it is written twice.
_WITHOUT_KEY = {
    "sqlite": (
        "DROP TABLE measurements",
        "CREATE TABLE measurements (series_id BLOB, time BIGINT, value DOUBLE, value_meta TEXT, version BIGINT)",
    ),
    "postgresql": ("ALTER TABLE measurements DROP CONSTRAINT measurements_pkey",),
}


class PersisterProcess(RunningProcess):
    """The running command. ``url``: the address of its status. ``service``: its name."""

    def __init__(self, process, log, port, service):
        super().__init__(process, log)
        self.service = service
        self.url = f"http://127.0.0.1:{port}"

    def status(self):
        """Return the state of each worker in /healthcheck; empty without a response."""
        try:
            return json.loads(fetch(f"{self.url}/healthcheck")[1])["members"]
        except (OSError, http.client.HTTPException):  # the process with the server ended during the response
            return {}

    def worker(self, name=None):
        return self.status().get(name or {"persister": "metrics-0"}.get(self.service, f"{self.service}-0"), {})

    def counter(self, name, **labels):
        """Return the sum over all workers; 0 without a response."""
        try:
            lines = fetch(f"{self.url}/metrics")[1].splitlines()
        except OSError:
            return 0
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"monasca_{self.service}_{name}{{") and all(each in line for each in wanted)
        )


class PersisterCase(Waiting, base.BaseTestCase):
    cluster_settings: ClassVar[dict[str, Any]] = {}
    database = "sqlite"
    command: ClassVar[tuple[str, ...]] = ("persister",)
    sections = _SECTIONS  # of the command
    own_server = False  # a server that the test may kill
    session_seconds = 30.0  # a busy machine must not expire a session

    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(**self.cluster_settings))
        self.cluster = self.fixture.cluster
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.topic = self.fixture.topic(PARTITIONS)
        self.dlq = f"{self.topic}.dlq"
        self.cluster.create_topic(self.dlq, 1)
        self.servers = self.cluster.client_options("admin")["bootstrap.servers"]
        self.connection = ConnectionSettings(self.servers)
        self.producer = self.open_producer()
        self.url = self.prepare_database()
        # Whole seconds, so that the number of a metric can be read from its time.
        self.base_ms = (time.time_ns() // 1_000_000_000 - 3600) * 1000
        self.outcomes = {}

    def open_producer(self):
        producer = plugins.kafka_producer(ProducerSettings(self.connection, linger_ms=0))
        self.addCleanup(producer.close, 1)
        return producer

    # The database

    def prepare_database(self):
        if self.database == "sqlite":
            url = f"sqlite:///{self.folder}/monasca.sqlite"
        elif self.own_server:
            self.server = self.enterContext(PostgresqlServer(settings={"fsync": "off"}))
            url = self.server.create_database()
        else:
            url = self.useFixture(SharedPostgresql()).url
        open_storage(StorageSettings(self.database, url)).upgrade()
        self.engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        return url

    def drop_key(self):
        for statement in _WITHOUT_KEY[self.database]:
            self.execute(statement)

    def execute(self, statement):
        with self.engine.begin() as connection:
            return connection.execute(sa.text(statement))

    def rows(self):
        """Return the number of each stored metric, repeated if it is stored twice."""
        with self.engine.connect() as connection:
            times = connection.execute(sa.text("SELECT time FROM measurements")).scalars()
            return [time_ms - self.base_ms for time_ms in times]

    # Kafka

    def metric(self, number, **facts):
        return envelopes.metric(number, time_ms=self.base_ms, creation_time=self.base_ms // 1000, **facts)

    def publish(self, numbers, *, bad=(), partition=None):
        """Send metrics of these numbers (``bad``: invalid) to all partitions in turn; record the outcomes."""
        records = []
        for number in numbers:
            value = b"no metric %d" % number if number in bad else self.metric(number)
            records.append(Record(value, partition=number % PARTITIONS if partition is None else partition))
        report = self.producer.publish(self.topic, records, timeout=SECONDS)
        numbers = list(numbers)
        for outcome, deliveries in (
            (ReportedOutcome.ACKED, report.delivered),
            (ReportedOutcome.FAILED, report.failed),
            (ReportedOutcome.UNKNOWN, report.unknown),
        ):
            self.outcomes |= {numbers[delivery.index]: outcome for delivery in deliveries}

    def dead_letters(self):
        """Return (number, cause, origin) of each dead letter."""
        letters = []
        for message in read_topic(self.cluster, self.dlq):
            headers = dict(message.headers())
            origin = (int(headers[ORIGIN_PARTITION]), int(headers[ORIGIN_OFFSET]))
            letters.append((int(message.value().split()[-1]), headers[ERROR_TEXT].decode(), origin))
        return letters

    def verdict(self):
        return check(self.outcomes, self.rows(), [number for number, _, _ in self.dead_letters()])

    # The processes

    def start_api(self, *lines, **process):
        """Start an API with these lines in its group. ``process``: arguments of `ApiProcess`."""
        kafka = ["[kafka]", f"bootstrap_servers = {self.servers}", "producer_options = socket.timeout.ms=1000"]
        lines = [*kafka, "[api]", "port = {port}", "auth_strategy = noauth", *lines]
        api = ApiProcess(self.folder, "\n".join(lines) + "\n", **process)
        self.addCleanup(api.kill)
        return api

    def start(self, *, fail_points="", mutants=(), changes=(), name="persister", **options):
        """Start the command. ``options``: see `configured`. ``fail_points``: those of the first workers. ``changes``:
        those of `changed_command`."""
        (port,) = ports.free_ports(1)
        configuration = self.folder / f"{name}.conf"
        configuration.write_text(self.configured(port, **options))
        changes = [*changes, *((getattr(persister_mutants, mutant),) for mutant in mutants)]
        if fail_points:
            changes.append((changed_command.arm_workers, 1, fail_points))
        return self.spawn(name, configuration, port, *changes)

    def configured(self, port, *, batch_size=20, metrics="", others=NO_ALARMS):
        """Return the configuration. ``metrics``: further options of that group. ``others``: further groups."""
        return (_CONFIGURATION + self.sections).format(
            folder=self.folder,
            servers=self.servers,
            driver=self.database,
            url=self.url,
            port=port,
            topic=self.topic,
            group=self.group,
            batch_size=batch_size,
            session=self.session_seconds,
            metrics=metrics,
            others=others,
        )

    def topics(self):
        """Return each topic with its number of partitions."""
        return [[self.topic, PARTITIONS]]

    def spawn(self, name, configuration, port, *changes):
        log = self.folder / f"{name}.log"
        command = changed_command.command_after(
            (changed_command.set_constants, _CONSTANTS), (changed_command.end_with_the_test,), *changes
        )
        command += [*self.command, "--config-file", str(configuration)]
        process = start_process(self, command, log, stdin=subprocess.PIPE)
        self.addCleanup(process.stdin.close)
        return PersisterProcess(process, log, port, self.command[0])

    def is_through(self, persister):
        worker, partitions = persister.worker(), sum(number for _, number in self.topics())
        return worker.get("state") == "running" and worker["partitions"] == partitions and worker["lag"] == 0

    def workers(self, persister):
        """Return the configured number of worker processes."""
        found = []
        for pid in dict.fromkeys(worker["pid"] for worker in persister.status().values()):
            if pid:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
                    found.append(psutil.Process(pid))
        return found

    def wait_for_all(self, seconds=PATIENCE_SECONDS, *, dead=0):
        """Wait until all rows (of distinct numbers) are stored."""
        wanted = sum(each is ReportedOutcome.ACKED for each in self.outcomes.values()) - dead
        self.wait_until(lambda: len(set(self.rows())) >= wanted, f"{wanted} rows", seconds=seconds)

    def assert_clean(self):
        self.verdict().raise_unless_clean()

    def assert_ends_in_order(self, persister):
        began = time.monotonic()
        self.assertEqual(0, persister.stop())
        self.assertLess(time.monotonic() - began, 60)  # ten are documented, but the machine may be busy
