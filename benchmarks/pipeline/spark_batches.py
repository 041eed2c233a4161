# SPDX-License-Identifier: Apache-2.0
"""What a small batch costs: `monasca-common pipeline run aggregate` with few records now and then, once it is warm.

CPU is that of the whole command: Python on the driver, its JVM, and the Python workers; a batch is everything from one
write to the next. The latencies are the times from the write to the commit of its partials' rows, to the first
aggregate of it in Kafka, and to the commit of the row that a `monasca-common persister` makes of that. All are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import sqlalchemy as sa
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.databases import Databases
from benchmarks.envelopes import values
from benchmarks.librdkafka import PARTITIONS
from benchmarks.pipeline.aggregating import specification_rows
from benchmarks.runner.table import show_table
from benchmarks.topics import Topics
from monasca_common.devbroker import KafkaCluster

_TRIGGER_SECONDS = 1
_PAUSE_SECONDS = 4.0
_PATIENCE_SECONDS = 180.0
_LOOK_SECONDS = 0.005
_HEAD = ["Records in a batch", "CPU s a batch", "of it the JVM", "Python"]
_HEAD += ["Seconds to the partials' rows", "to an aggregate in Kafka", "to its row"]
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
[spark]
master = local[2]
shuffle_partitions = 2
{options}
[pipeline_aggregate]
topic = {topic}
output_topic = {topic}.out
connection = {url}
pre_transform_specs = {folder}/pre.jsonl
transform_specs = {folder}/transform.jsonl
trigger_seconds = {trigger}
"""


_PERSISTER = """\
[kafka]
bootstrap_servers = {servers}
[storage]
driver = postgresql
[database]
connection = {url}
[kafka_metrics]
topic = {topic}.out
[kafka_alarm_history]
enabled = false
"""


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    java: float
    python: float

    @property
    def total(self) -> float:
        return self.java + self.python


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from the write."""

    partials: float
    aggregate: float
    row: float


class Command:
    """A command, and what it has used so far."""

    def __init__(self, command: Sequence[str], configuration: Path, log: Path) -> None:
        line = [sys.executable, "-m", "monasca_common.cli.main", *command, "--config-file", str(configuration)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(line, stdout=output, stderr=output)
        self._log = log

    def cpu_seconds(self) -> CpuSeconds:
        java = python = 0.0
        root = psutil.Process(self._process.pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                spent = sum(process.cpu_times()[:4])  # with children that have ended
                if process.name().startswith("java"):
                    # Its Python workers are counted while they live; afterwards they are in its children's time.
                    java += sum(process.cpu_times()[:2])
                else:
                    python += spent if process.pid != root.pid else sum(process.cpu_times()[:2])
        return CpuSeconds(java, python)

    def check(self) -> None:
        if self._process.poll() is not None:
            sys.exit(f"the command has ended:\n{self._log.read_text()[-4000:]}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


class Outputs:
    """The aggregates in Kafka, as they come."""

    def __init__(self, servers: str, topic: str) -> None:
        self._reader = Consumer({"bootstrap.servers": servers, "group.id": "look", "fetch.queue.backoff.ms": 10})
        self._reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    def has_another(self) -> bool:
        message = self._reader.poll(0)
        return message is not None and not message.error()

    def skip(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            self._reader.consume(1000, rest)


class Positions:
    """How far each topic is read, as the database has it: a position is committed with the rows."""

    def __init__(self, url: str) -> None:
        self._connection = sa.create_engine(url, isolation_level="AUTOCOMMIT").connect()

    def of(self, topic: str) -> int:
        query = sa.text("SELECT coalesce(sum(next), 0) FROM kafka_offset WHERE topic = :topic")
        return int(self._connection.scalar(query, {"topic": topic}) or 0)

    def close(self) -> None:
        self._connection.close()


class Batches:
    """Writes batches, and measures each."""

    def __init__(self, producer: Producer, topic: str, outputs: Outputs, positions: Positions) -> None:
        self._producer = producer
        self._topic = topic
        self._outputs = outputs
        self._positions = positions

    def run(self, job: Command, persister: Command, records: int) -> tuple[CpuSeconds, Latencies]:
        before, positions = job.cpu_seconds(), self._positions
        read, stored = positions.of(self._topic), positions.of(f"{self._topic}.out")
        for position, (_, value, _) in enumerate(values(records, repeats=False)):
            self._producer.produce(self._topic, value, partition=position % PARTITIONS)
        self._producer.flush()
        written = time.monotonic()
        steps = (
            lambda: positions.of(self._topic) > read,
            self._outputs.has_another,
            lambda: positions.of(f"{self._topic}.out") > stored,
        )
        latencies = []
        for step in steps:  # in this order
            while not step():
                job.check()
                persister.check()
                if time.monotonic() > written + _PATIENCE_SECONDS:
                    sys.exit("no aggregate was published, or it was not stored")
                time.sleep(_LOOK_SECONDS)
            latencies.append(time.monotonic() - written)
        self._outputs.skip(_PAUSE_SECONDS)
        after = job.cpu_seconds()
        return CpuSeconds(after.java - before.java, after.python - before.python), Latencies(*latencies)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.spark_batches", description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[50, 1000], help="records in a batch")
    parser.add_argument("--warm-up", type=int, default=30, metavar="BATCHES", help="batches that are not counted")
    parser.add_argument("--batches", type=int, default=15, help="batches that are counted")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of Spark")
    parser.add_argument("--each", action="store_true", help="print each batch")
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(KafkaCluster())
        url = stack.enter_context(stack.enter_context(Databases()).new("postgresql"))
        topics = Topics(cluster)
        topic = stack.enter_context(topics.new())
        for suffix in ("out", "out.dlq", "dlq"):
            stack.enter_context(topics.new(f"{topic}.{suffix}"))
        configuration = _configure(folder, cluster.bootstrap_servers, topic, url, arguments.option)
        stored = folder / "persister.conf"
        stored.write_text(_PERSISTER.format(servers=cluster.bootstrap_servers, topic=topic, url=url))
        producer = Producer({**cluster.direct_options(), "linger.ms": 0})
        positions = Positions(url)
        stack.callback(positions.close)
        batches = Batches(producer, topic, Outputs(cluster.bootstrap_servers, f"{topic}.out"), positions)
        persister = Command(["persister"], stored, folder / "persister.log")
        stack.callback(persister.close)
        job = Command(["pipeline", "run", "aggregate"], configuration, folder / "log")
        stack.callback(job.close)
        warm_up = arguments.warm_up
        for records in arguments.records:
            measured = []
            for number in range(warm_up + arguments.batches):
                measured.append(batches.run(job, persister, records))
                if arguments.each:
                    print(f"{number}: {measured[-1]}", file=sys.stderr)
            rows.append(_row(records, measured[warm_up:]))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
            warm_up = 5
    show_table(_HEAD, rows, arguments.rst)
    return 0


def _configure(folder: Path, servers: str, topic: str, url: str, options: Sequence[str]) -> Path:
    for name, rows in specification_rows(5).items():
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    configuration = folder / "pipeline.conf"
    lines = "\n".join(f"options = {option}" for option in options)
    configuration.write_text(
        _CONFIGURATION.format(
            servers=servers, topic=topic, url=url, folder=folder, options=lines, trigger=_TRIGGER_SECONDS
        )
    )
    return configuration


def _row(records: int, batches: Sequence[tuple[CpuSeconds, Latencies]]) -> list[str]:
    medians = (
        statistics.median(spent.total for spent, _ in batches),
        statistics.median(spent.java for spent, _ in batches),
        statistics.median(spent.python for spent, _ in batches),
        statistics.median(latencies.partials for _, latencies in batches),
        statistics.median(latencies.aggregate for _, latencies in batches),
        statistics.median(latencies.row for _, latencies in batches),
    )
    return [f"{records:,}", *(f"{median:.2f}" for median in medians)]


if __name__ == "__main__":
    sys.exit(main())
