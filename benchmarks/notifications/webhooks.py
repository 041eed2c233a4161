# SPDX-License-Identifier: Apache-2.0
"""Notifications to local webhooks: transitions a second, and how long one takes from its transition to its receipt.

The command, with PostgreSQL, beside the old service's way of sending: one at a time in each of four processes. Each
transition has one receiver of 1, 10 or 100, which answers at once or after 200 ms. Each receiver has an address of its
own. Kafka, database, receivers and sender share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.databases import Databases
from benchmarks.job import percentile
from benchmarks.runner.table import show_table
from benchmarks.topics import Topics
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.transitions import AlarmChange, AlarmedMetric
from monasca_common.devbroker import KafkaCluster
from monasca_common.kafka import KafkaProducer, Record, plugins
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.storage import StorageSettings
from monasca_common.storage.sql import tables

_PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 0.1
_PACE = 15  # transitions a second, which the old way can keep up with
_REQUIRED = 10.0
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
[storage]
driver = postgresql
[database]
connection = {url}
[kafka_notifications]
topic = {topic}
group_id = {group}
[kafka_retry_notifications]
topic = {topic}-retry
group_id = {group}
[kafka_periodic_notifications]
topic = {topic}-periodic
[alarm_processor]
notification_topic = {topic}-told
[notification]
allowed_networks = 127.0.0.0/24
"""


@dataclass(frozen=True, slots=True)
class Load:
    """``ours`` and ``old``: how many transitions the rate is measured with."""

    destinations: int
    delay_ms: int
    ours: int
    old: int


_LOADS = (Load(1, 0, 4000, 2000), Load(10, 0, 4000, 2000), Load(100, 0, 4000, 2000), Load(100, 200, 4000, 200))
_QUICK = 10


@dataclass(frozen=True, slots=True)
class Measured:
    rate: float
    p50_ms: float
    p99_ms: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notifications.webhooks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of it, too short for more than an impression")
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    rows, ratio = [], 0.0
    with KafkaCluster() as cluster, Databases() as databases:
        for load in _LOADS:
            shorter = _QUICK if arguments.quick else 1
            old = _measure(cluster, databases, load, load.old // shorter, Sequential)
            ours = _measure(cluster, databases, load, load.ours // shorter, Service)
            ratio = ours.rate / old.rate
            figures = (ours.rate, old.rate, ratio, ours.p50_ms, ours.p99_ms, old.p50_ms, old.p99_ms)
            rows.append([str(load.destinations), str(load.delay_ms), *(f"{figure:,.1f}" for figure in figures)])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    head = ["Receivers", "Answer after, ms", "Transitions/s", "Old way", "Ratio", "p50, ms", "p99, ms"]
    show_table([*head, "Old way p50, ms", "Old way p99, ms"], rows, arguments.rst)
    return 0 if ratio >= _REQUIRED else 1


def _measure(cluster: KafkaCluster, databases: Databases, load: Load, count: int, sender: type[Sender]) -> Measured:
    """The rate of a backlog, and then the latency of transitions that come one by one."""
    topics = Topics(cluster)
    with contextlib.ExitStack() as stack:
        topic = stack.enter_context(topics_of(topics))
        url = stack.enter_context(databases.new())
        port = stack.enter_context(receiver(load.delay_ms))
        producer = plugins.kafka_producer(ProducerSettings(ConnectionSettings(cluster.bootstrap_servers), linger_ms=0))
        stack.callback(producer.close, 1)
        add_methods(url, load.destinations, port)
        stack.enter_context(sender(cluster.bootstrap_servers, topic, url))
        warm = load.destinations * 2
        publish(producer, topic, range(warm), load.destinations)
        wait(port, warm)
        publish(producer, topic, range(warm, warm + count), load.destinations)
        times = sorted(wait(port, warm + count).values())
        rate = (count - count // 10) / (times[-1] - times[warm + count // 10 - 1])
        latencies = _latencies(producer, topic, port, warm + count, load, max(_PACE, count // 20))
    return Measured(rate, percentile(latencies, 0.5), percentile(latencies, 0.99))


def _latencies(producer: KafkaProducer, topic: str, port: int, first: int, load: Load, count: int) -> list[float]:
    began: dict[str, float] = {}
    for number in range(first, first + count):
        due = time.time() + 1 / _PACE
        began[f"alarm-{number}"] = time.time()
        publish(producer, topic, range(number, number + 1), load.destinations)
        time.sleep(max(0.0, due - time.time()))
    taken = wait(port, first + count)
    return [(taken[alarm] - at) * 1000 for alarm, at in began.items()]


class Sender:
    """A program that runs within the block."""

    def __init__(self, servers: str, topic: str, url: str, group: str = "") -> None:
        """``group``: of one that ran before, to go on where it stopped."""
        self.group = group or f"group-{uuid.uuid4().hex[:12]}"
        self._folder = tempfile.TemporaryDirectory(prefix="monasca-common-benchmark-")
        self.log = Path(self._folder.name, "log")
        with self.log.open("wb") as log:
            command = self.command(servers, topic, self.group, url)
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def command(self, servers: str, topic: str, group: str, url: str) -> list[str]:
        raise NotImplementedError

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self._folder.cleanup()


class Service(Sender):
    def command(self, servers: str, topic: str, group: str, url: str) -> list[str]:
        file = Path(self._folder.name, "notification.conf")
        file.write_text(_CONFIGURATION.format(servers=servers, topic=topic, group=group, url=url))
        return [sys.executable, "-m", "monasca_common.cli.main", "notification", "--config-file", str(file)]


class Sequential(Sender):
    def command(self, servers: str, topic: str, group: str, url: str) -> list[str]:
        url = url.replace("postgresql:", "postgresql+psycopg:")
        return [sys.executable, "-m", "benchmarks.notifications.sequential_notifier", servers, topic, group, url]


@contextlib.contextmanager
def topics_of(topics: Topics) -> Iterator[str]:
    """The topic of changes; the service's other ones have names that begin with its name."""
    with contextlib.ExitStack() as stack:
        topic = stack.enter_context(topics.new())
        read = (topic, f"{topic}-retry", f"{topic}-periodic")
        for name in (*read[1:], f"{topic}-told", *(f"{each}.dlq" for each in read)):
            stack.enter_context(topics.new(name))
        yield topic


@contextlib.contextmanager
def receiver(delay_ms: int) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.notifications.webhook_receiver", str(delay_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def add_methods(url: str, destinations: int, port: int) -> None:
    database = AlarmsDatabase(StorageSettings("postgresql", url))
    methods = NotificationMethods(database)
    for number in range(destinations):
        address = f"http://127.0.0.{number + 1}:{port}/hook"
        made = methods.create("t", NotificationMethod(f"m{number}", "WEBHOOK", address), 1)
        row = {"definition_id": f"d{number}", "state": "ALARM", "position": 0, "method_id": made.id}
        database.write(lambda connection, row=row: connection.execute(tables.alarm_action.insert().values(row)))
    database.close()


def publish(producer: KafkaProducer, topic: str, numbers: range, destinations: int) -> None:
    records = []
    for number in numbers:
        made = change(number, f"d{number % destinations}")
        records.append(Record(made.message, key=made.alarm_id.encode(), message_id=made.message_id))
    producer.publish(topic, records, timeout=_PATIENCE_SECONDS).raise_for_undelivered()


def change(number: int, definition: str) -> AlarmChange:
    texts = {"name": "cpu is busy", "description": "of a benchmark", "severity": "HIGH"}
    states = {"old_state": "OK", "new_state": "ALARM", "reason": "Thresholds were exceeded", "actions_enabled": True}
    notes = {"link": None, "lifecycle_state": None, "metrics": [AlarmedMetric("cpu", {"hostname": f"h{number}"})]}
    now_ms = time.time_ns() // 1_000_000
    return AlarmChange("t", f"alarm-{number}", definition, **texts, **states, **notes, time_ms=now_ms)  # type: ignore[arg-type]


def wait(port: int, count: int) -> dict[str, float]:
    """When each of so many alarms was taken first."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/taken") as answer:
            taken: dict[str, float] = {}
            for alarm, at in json.load(answer):
                taken.setdefault(alarm, at)
        if len(taken) >= count:
            return taken
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"{len(taken)} of {count} were taken")


if __name__ == "__main__":
    sys.exit(main())
