# SPDX-License-Identifier: Apache-2.0
"""What retries that wait cost the notification service: memory and CPU while 0, 1,000 and 100,000 are due in an hour,
and how long a change takes to its receipt behind them: ``python -m benchmarks.notifications.waiting_retries``.

They come at once, so the service has read many ahead; restarted, it has those that wait alone.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator

import psutil
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from benchmarks.databases import Databases
from benchmarks.notifications import webhooks
from benchmarks.runner.table import rst_table
from benchmarks.topics import Topics
from monasca_common.devbroker import KafkaCluster
from monasca_common.kafka import KafkaProducer, Record, plugins
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.notification.notice import notice_of
from monasca_common.notification.retries import Retry

_COUNTS = (0, 1_000, 100_000)
_AT_ONCE = 10_000
_HOUR_MS = 3_600_000
_IDLE_SECONDS = 20.0
_PATIENCE_SECONDS = 900.0
_LOOK_SECONDS = 0.5


def main() -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.notifications.waiting_retries", description=__doc__).parse_args()
    rows = []
    with KafkaCluster() as cluster, Databases() as databases:
        for count in _COUNTS:
            rows.append([f"{count:,}", *_measured(cluster, databases, count)])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    heads = ["Memory, MB", "After a restart, MB", "CPU while idle, %", "Parked in, s", "Next change, ms"]
    print(rst_table(["Retries that wait", *heads], rows))
    return 0


def _measured(cluster: KafkaCluster, databases: Databases, count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        topic = stack.enter_context(webhooks.topics_of(Topics(cluster)))
        url = stack.enter_context(databases.new())
        port = stack.enter_context(webhooks.receiver(0))
        producer = plugins.kafka_producer(ProducerSettings(ConnectionSettings(cluster.bootstrap_servers), linger_ms=0))
        stack.callback(producer.close, 1)
        webhooks.add_methods(url, 1, port)
        service = stack.enter_context(webhooks.Service(cluster.bootstrap_servers, topic, url))
        webhooks.publish(producer, topic, range(10), 1)
        webhooks.wait(port, 10)
        began = time.perf_counter()
        _publish_retries(producer, f"{topic}-retry", count)
        for parked in _parked(url):
            if parked == count:
                break
            time.sleep(_LOOK_SECONDS)
        parked_seconds = time.perf_counter() - began
        share = _idle(service.process.pid)
        sent_at = time.time()
        webhooks.publish(producer, topic, range(10, 11), 1)
        took_ms = (webhooks.wait(port, 11)["alarm-10"] - sent_at) * 1000
        memory_mb = _memory_mb(service.process.pid)
        service.__exit__()
        with webhooks.Service(cluster.bootstrap_servers, topic, url, service.group) as again:
            webhooks.publish(producer, topic, range(11, 12), 1)
            webhooks.wait(port, 12)
            restarted_mb = _memory_mb(again.process.pid)
        return [f"{memory_mb:.0f}", f"{restarted_mb:.0f}", f"{share:.1%}", f"{parked_seconds:.0f}", f"{took_ms:.0f}"]


def _publish_retries(producer: KafkaProducer, topic: str, count: int) -> None:
    due_ms = time.time_ns() // 1_000_000 + _HOUR_MS
    for start in range(0, count, _AT_ONCE):
        records = []
        for number in range(start, min(start + _AT_ONCE, count)):
            notice = notice_of(webhooks.change(1_000_000 + number, "d0"), "m")
            made = Retry(notice, "m", 2, due_ms, "answered 500").record()
            records.append(Record(made.value, key=made.key))
        producer.publish(topic, records, timeout=_PATIENCE_SECONDS).raise_for_undelivered()


def _parked(url: str) -> Iterator[int]:
    engine = sa.create_engine(url, poolclass=NullPool)
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        with engine.connect() as connection:
            yield int(connection.scalar(sa.text("SELECT count(*) FROM notification_waiting")) or 0)
    raise TimeoutError("the retries were not parked")


def _worker(pid: int) -> psutil.Process:
    (worker,) = psutil.Process(pid).children()
    return worker


def _memory_mb(pid: int) -> float:
    return float(_worker(pid).memory_info().rss) / 2**20


def _idle(pid: int) -> float:
    worker = _worker(pid)
    before = sum(worker.cpu_times()[:2])
    time.sleep(_IDLE_SECONDS)
    return float(sum(worker.cpu_times()[:2]) - before) / _IDLE_SECONDS


if __name__ == "__main__":
    sys.exit(main())
