# SPDX-License-Identifier: Apache-2.0
"""A backlog of alarm changes to webhooks: the notification service, or four processes that send one at a time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.job import Figures, Job, main
from benchmarks.librdkafka import PARTITIONS, versions
from benchmarks.process_tree import cpu_seconds
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.transitions import AlarmChange, AlarmedMetric
from monasca_common.kafka import Record, plugins
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.storage import StorageSettings
from monasca_common.storage.sql import tables

_RECEIVERS = 100
_ANSWER_MS = 200
_WARM = 2 * _RECEIVERS
_SECONDS = 300.0
_POLL_SECONDS = 0.1
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {job.servers}
[storage]
driver = postgresql
[database]
connection = {job.database}
[kafka_notifications]
topic = {job.topic}
group_id = {job.group}
[kafka_retry_notifications]
topic = {job.topic}-retry
group_id = {job.group}
[kafka_periodic_notifications]
topic = {job.topic}-periodic
[alarm_processor]
notification_topic = {job.topic}-sent
[notification]
allowed_networks = 127.0.0.0/24
"""


def run(job: Job) -> Figures:
    _create_topics(job)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        receiver = stack.enter_context(_process(["benchmarks.notifications.webhook_receiver", str(_ANSWER_MS)]))
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        _create_methods(job.database, port)
        _publish(job)
        sender = stack.enter_context(_process(_command(job, folder)))
        _wait(port, _WARM)
        began, before = time.perf_counter(), cpu_seconds(sender.pid)
        _wait(port, _WARM + job.messages)
        seconds = time.perf_counter() - began
        used = cpu_seconds(sender.pid) - before
    return Figures(job.messages, seconds, used, written=_WARM + job.messages, versions=versions())


def _create_topics(job: Job) -> None:
    names = [f"{job.topic}{part}" for part in ("-retry", "-periodic", "-sent", ".dlq", "-retry.dlq", "-periodic.dlq")]
    client = AdminClient({"bootstrap.servers": job.servers})  # without it the answers never come
    for future in client.create_topics([NewTopic(name, PARTITIONS) for name in names]).values():
        future.result(_SECONDS)


def _command(job: Job, folder: Path) -> list[str]:
    if job.case.endswith("-bare"):
        url = job.database.replace("postgresql:", "postgresql+psycopg:")
        return ["benchmarks.notifications.sequential_notifier", job.servers, job.topic, job.group, url]
    file = folder / "notification.conf"
    file.write_text(_CONFIGURATION.format(job=job))
    return ["monasca_common.cli.main", "notification", "--config-file", str(file)]


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=_SECONDS)


def _create_methods(url: str, port: int) -> None:
    with contextlib.closing(AlarmsDatabase(StorageSettings("postgresql", url))) as database:
        methods = NotificationMethods(database)
        for number in range(_RECEIVERS):
            address = f"http://127.0.0.{number + 1}:{port}/hook"
            method = methods.create("t", NotificationMethod(f"m{number}", "WEBHOOK", address), 1)
            row = {"definition_id": f"d{number}", "state": "ALARM", "position": 0, "method_id": method.id}
            database.write(lambda connection, row=row: connection.execute(tables.alarm_action.insert().values(row)))


def _publish(job: Job) -> None:
    changes = [_change(number) for number in range(_WARM + job.messages)]
    with plugins.kafka_producer(ProducerSettings(ConnectionSettings(job.servers))) as producer:
        records = [Record(each.message, key=each.alarm_id.encode(), message_id=each.message_id) for each in changes]
        producer.publish(job.topic, records, timeout=_SECONDS).raise_for_undelivered()


def _change(number: int) -> AlarmChange:
    return AlarmChange(
        "t",
        f"alarm-{number}",
        f"d{number % _RECEIVERS}",
        name="cpu is busy",
        description="benchmark",
        severity="HIGH",
        old_state="OK",
        new_state="ALARM",
        reason="Thresholds were exceeded",
        actions_enabled=True,
        link=None,
        lifecycle_state=None,
        metrics=[AlarmedMetric("cpu", {"hostname": f"h{number}"})],
        time_ms=time.time_ns() // 1_000_000,
    )


def _wait(port: int, count: int) -> None:
    """Wait until ``count`` different alarms were received."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/received") as answer:
            if int(answer.read()) >= count:
                return
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"fewer than {count} alarms were received within {_SECONDS:g} s")


if __name__ == "__main__":
    main(run)
