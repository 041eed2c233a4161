# SPDX-License-Identifier: Apache-2.0
"""The processor time that each job of Spark takes at one message a second on 12 partitions, once it is warm.

It is that of the whole command (Python, its JVM and Spark's Python workers), with PostgreSQL and Kafka beside it. The
jobs have their defaults, except that `aggregate` looks for duplicates and `archive` writes each minute.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import sqlalchemy as sa
from confluent_kafka import Producer
from sqlalchemy.pool import NullPool

from benchmarks.databases import Databases
from benchmarks.envelopes import TENANT, values
from benchmarks.pipeline.aggregating import NAMES, specification_rows
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.devbroker import KafkaCluster
from monasca_common.storage import StorageSettings

_PARTITIONS = 12
_HEAD = ["Job", "CPU s a minute", "of it the JVM", "the driver", "Python workers", "Offsets read"]
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
[storage]
driver = postgresql
[database]
connection = {url}
[spark]
master = local[2]
shuffle_partitions = 2
[pipeline_aggregate]
output_topic = aggregates
pre_transform_specs = {folder}/pre.jsonl
transform_specs = {folder}/transform.jsonl
duplicates_lookback = 10000
{trigger}
[pipeline_archive]
location = {folder}/archive
trigger_seconds = 60
"""


class Command:
    """A job, and the processor time that it has used: of the JVM, the driver, and Python workers."""

    def __init__(self, job: str, configuration: Path, log: Path) -> None:
        line = [sys.executable, "-m", "monasca_common.cli.main", "pipeline", "run", job]
        with log.open("wb") as output:
            self._process = subprocess.Popen([*line, "--config-file", str(configuration)], stdout=output, stderr=output)
        self._log = log

    def cpu_seconds(self) -> tuple[float, float, float]:
        if self._process.poll() is not None:
            sys.exit(f"the command has ended:\n{self._log.read_text()[-4000:]}")
        java = driver = workers = 0.0
        root = psutil.Process(self._process.pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                if process.name().startswith("java"):
                    java += times.user + times.system
                elif process.pid == root.pid:
                    driver += times.user + times.system
                else:  # with workers that have ended
                    workers += sum(times[:4])
        return java, driver, workers

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


class Trickle:
    """Writes a message a second."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._values: Iterator[tuple[int, bytes, int]] = values(10_000_000)
        self._count = 0

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            _, value, _ = next(self._values)
            headers = [("message-id", uuid.uuid4().bytes)]
            self._producer.produce("metrics", value, partition=self._count % _PARTITIONS, headers=headers)
            self._producer.flush()
            self._count += 1
            time.sleep(min(1.0, left))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.one_a_second", description=__doc__)
    parser.add_argument("--jobs", nargs="+", default=["aggregate", "evaluate", "archive"])
    parser.add_argument("--warm-up", type=float, default=60.0, metavar="S", help="after the first batch, not counted")
    parser.add_argument("--seconds", type=float, default=120.0, help="counted")
    parser.add_argument("--definitions", type=int, default=500, help="alarm definitions")
    parser.add_argument("--trigger-seconds", type=float, help="of the job aggregate")
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(KafkaCluster())
        url = stack.enter_context(stack.enter_context(Databases()).new())
        for topic in ("metrics", "metrics.dlq", "aggregates", "alarm-state-transitions", "events"):
            cluster.create_topic(topic, _PARTITIONS)
        for name, lines in zip(("pre", "transform"), specification_rows(), strict=True):
            (folder / f"{name}.jsonl").write_text("\n".join(lines))
        trigger = "" if arguments.trigger_seconds is None else f"trigger_seconds = {arguments.trigger_seconds}"
        configuration = folder / "pipeline.conf"
        configuration.write_text(
            _CONFIGURATION.format(servers=cluster.bootstrap_servers, url=url, folder=folder, trigger=trigger)
        )
        _define(url, arguments.definitions)
        trickle = Trickle(Producer({**cluster.direct_options(), "linger.ms": 0}))
        for job in arguments.jobs:
            command = Command(job, configuration, folder / f"{job}.log")
            stack.callback(command.close)
            while not _accounted(url, job):
                trickle.run(1)
                command.cpu_seconds()
            trickle.run(arguments.warm_up)
            before, read = command.cpu_seconds(), _accounted(url, job)
            trickle.run(arguments.seconds)
            after, read = command.cpu_seconds(), _accounted(url, job) - read
            command.close()
            spent = [60 / arguments.seconds * (to - of) for of, to in zip(before, after, strict=True)]
            rows.append([job, *(f"{figure:.1f}" for figure in (sum(spent), *spent)), str(read)])
            print("  ".join(f"{name}: {cell}" for name, cell in zip(_HEAD, rows[-1], strict=True)), flush=True)
    if arguments.rst:
        arguments.rst.write_text("".join(_restructured_text([_HEAD, *rows])))
    return 0


def _restructured_text(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ".. list-table::\n   :header-rows: 1\n\n"
    for row in rows:
        first, *others = row
        yield f"   * - {first}\n"
        yield from (f"     - {cell}\n" for cell in others)


def _accounted(url: str, job: str) -> int:
    """How many offsets the job has accounted for."""
    engine = sa.create_engine(url, poolclass=NullPool)
    query = sa.text("SELECT coalesce(sum(next), 0) FROM kafka_offset WHERE consumer_group = :job")
    with engine.connect() as connection:
        return int(connection.scalar(query, {"job": f"spark-{job}"}))


def _define(url: str, count: int) -> None:
    database = AlarmsDatabase(StorageSettings("postgresql", url))
    definitions = AlarmDefinitions(database)
    now_ms = time.time_ns() // 1_000_000
    for number in range(count):
        host, name = divmod(number, len(NAMES))
        expression = f"avg(disk.{NAMES[name]}{{hostname=compute-{host:03d}.example.org}}) > 90"
        definitions.create(TENANT, AlarmDefinition(f"d{number}", expression), now_ms)
    database.close()


if __name__ == "__main__":
    sys.exit(main())
