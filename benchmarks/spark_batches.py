# SPDX-License-Identifier: Apache-2.0
"""What a small batch costs: `monasca-common pipeline run aggregate` with few records now and then, once it is warm.

CPU is that of the whole command: Python on the driver, its JVM, and the Python workers; a batch is everything from one
write to the next. Latency is the time from the write to the first aggregate of it in Kafka. Both are medians.
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
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.cases.aggregating import specification_rows
from benchmarks.databases import Databases
from benchmarks.envelopes import values
from benchmarks.librdkafka import PARTITIONS
from benchmarks.spark_growth import rst_table
from benchmarks.topics import Topics
from monasca_common.devbroker import KafkaCluster

_TRIGGER_SECONDS = 1
_PAUSE_SECONDS = 4.0
_PATIENCE_SECONDS = 180.0
_HEAD = ["Records in a batch", "CPU s a batch", "of it the JVM", "Python", "Latency, s"]
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


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    java: float
    python: float

    @property
    def total(self) -> float:
        return self.java + self.python


class Command:
    """The command, and what it has used so far."""

    def __init__(self, configuration: Path, log: Path) -> None:
        command = [sys.executable, "-m", "monasca_common.cli.main", "pipeline", "run", "aggregate"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--config-file", str(configuration)], stdout=output, stderr=output
            )
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

    def wait(self, command: Command) -> None:
        """Returns when there is another."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (message := self._reader.poll(0.1)) is None or message.error():
            command.check()
            if time.monotonic() > deadline:
                sys.exit("no aggregate was published")

    def skip(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            self._reader.consume(1000, rest)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_batches", description=__doc__)
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
        for suffix in ("out", "dlq"):
            stack.enter_context(topics.new(f"{topic}.{suffix}"))
        configuration = _configure(folder, cluster.bootstrap_servers, topic, url, arguments.option)
        producer = Producer({**cluster.direct_options(), "linger.ms": 0})
        outputs = Outputs(cluster.bootstrap_servers, f"{topic}.out")
        command = Command(configuration, folder / "log")
        stack.callback(command.close)
        warm_up = arguments.warm_up
        for records in arguments.records:
            batches = [
                _batch(command, producer, outputs, topic, records, number, each=arguments.each)
                for number in range(warm_up + arguments.batches)
            ]
            rows.append(_row(records, batches[warm_up:]))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
            warm_up = 5
    text = rst_table(_HEAD, rows)
    print(text)
    if arguments.rst:
        arguments.rst.write_text(text)
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


def _batch(
    command: Command, producer: Producer, outputs: Outputs, topic: str, records: int, number: int, *, each: bool
) -> tuple[CpuSeconds, float]:
    """CPU seconds of one batch, and its latency."""
    before = command.cpu_seconds()
    for position, (_, value) in enumerate(values(records, repeats=False)):
        producer.produce(topic, value, partition=position % PARTITIONS)
    producer.flush()
    written = time.monotonic()
    outputs.wait(command)
    latency = time.monotonic() - written
    outputs.skip(_PAUSE_SECONDS)
    after = command.cpu_seconds()
    spent = CpuSeconds(after.java - before.java, after.python - before.python)
    if each:
        print(f"{number}: java {spent.java:.2f} python {spent.python:.2f} latency {latency:.2f}", file=sys.stderr)
    return spent, latency


def _row(records: int, batches: Sequence[tuple[CpuSeconds, float]]) -> list[str]:
    medians = (
        statistics.median(spent.total for spent, _ in batches),
        statistics.median(spent.java for spent, _ in batches),
        statistics.median(spent.python for spent, _ in batches),
        statistics.median(latency for _, latency in batches),
    )
    return [f"{records:,}", *(f"{median:.2f}" for median in medians)]


if __name__ == "__main__":
    sys.exit(main())
