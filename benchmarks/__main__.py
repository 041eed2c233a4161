# SPDX-License-Identifier: Apache-2.0
"""Measure speed in comparison with peers, on a Kafka and a PostgreSQL that this command starts and stops, and print a
table.

Each case runs in its own process, the cases alternate between repeats, and every record is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka

from benchmarks import peers
from benchmarks.case_process import CaseFailed, run_case
from benchmarks.databases import Databases, stored_rows
from benchmarks.job import Figures, Job
from benchmarks.results import Results
from benchmarks.sections import SECTIONS, Case, Section
from benchmarks.topics import AVRO, Topics
from monasca_common.devbroker import KafkaCluster
from monasca_common.devbroker.jars import kafka_version

# Processes that start together share the partitions from the start, so that later rebalances do not stop them.
_CONFIG = {"group.initial.rebalance.delay.ms": "1000"}
_NAMES = [section.name for section in SECTIONS]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer messages and repeats")
    parser.add_argument("--only", nargs="+", choices=_NAMES, metavar="SECTION", help=f"any of {', '.join(_NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to which the figures of every run are written")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a required ratio is missed")
    arguments = parser.parse_args()
    sections = [section for section in SECTIONS if not arguments.only or section.name in arguments.only]
    machine = {"cores": str(os.cpu_count()), "Python": platform.python_version(), "Kafka": kafka_version()}
    clients = {"confluent-kafka": confluent_kafka.__version__, "librdkafka": str(confluent_kafka.libversion()[0])}
    results = Results({**machine, **clients})
    installed = _install([case for section in sections for case in section.cases], results)
    with KafkaCluster(config=_CONFIG) as cluster, Databases() as databases:
        results.machine["PostgreSQL"] = databases.version()
        run = _Run(cluster.bootstrap_servers, Topics(cluster), databases, results, installed, arguments.quick)
        for section in sections:
            run.section(section)
    print(results.text())
    if arguments.json:
        results.write(arguments.json)
    missed = [verdict for verdict in results.verdicts() if not (verdict.met or verdict.required.goal)]
    return 1 if results.failures or (arguments.check and missed) else 0


def _install(cases: Sequence[Case], results: Results) -> dict[str, str]:
    """Install what the cases need before the first measurement, and return the paths."""
    paths = {}
    for case in cases:
        if case.needs:
            try:
                paths[case.needs] = str(peers.installed(case.needs))
            except peers.PeerMissing as error:
                results.skipped[case.name] = str(error)
    return paths


@dataclass
class _Run:
    servers: str
    topics: Topics
    databases: Databases
    results: Results
    installed: Mapping[str, str]
    is_quick: bool
    groups: int = 0

    def section(self, section: Section) -> None:
        length = "quick" if self.is_quick else "full"
        today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
        self.results.measured[section.name] = f"{today}, {length}, load {os.getloadavg()[0]:.1f} before"
        cases = [case for case in section.cases if case.name not in self.results.skipped]
        with contextlib.ExitStack() as stack:
            backlog = stack.enter_context(self._backlog(section)) if section.backlog else None
            for repeat in range(section.quick_repeats if self.is_quick else section.repeats):
                # The first case of a repeat starts on an idle machine, so each repeat starts with a different case.
                for case in cases if repeat % 2 == 0 else reversed(cases):
                    with contextlib.ExitStack() as needs:
                        topic = backlog or needs.enter_context(self.topics.new())
                        if section.backlog == "formats" and case.name.endswith("-avro"):
                            topic += AVRO
                        url = needs.enter_context(self.databases.new()) if section.stores else ""
                        self._measure(case, topic, url)

    @contextlib.contextmanager
    def _backlog(self, section: Section) -> Iterator[str]:
        count = max(self._count(case) for case in section.cases)
        assert section.backlog
        with contextlib.ExitStack() as stack:
            topic = stack.enter_context(self.topics.new())
            topics = [topic, f"{topic}{AVRO}"] if section.backlog == "formats" else [topic]
            for name in [*topics[1:], *(f"{each}.dlq" for each in topics)]:
                stack.enter_context(self.topics.new(name))
            print(f"writing {count:,} messages for {section.name} ...", file=sys.stderr, flush=True)
            run_case("fill", Job(self.servers, topic, count, case=section.backlog))
            for each in topics:
                if self.topics.records(each) != count:
                    raise CaseFailed(f"the backlog has {self.topics.records(each)} records instead of {count}")
            yield topic

    def _count(self, case: Case) -> int:
        return case.quick_messages if self.is_quick else case.messages

    def _measure(self, case: Case, topic: str, database: str) -> None:
        if case.name in self.results.failures:
            return
        self.groups += 1
        job = Job(
            self.servers,
            topic,
            self._count(case),
            group=f"benchmark-{self.groups}",
            threads=case.threads,
            bulk=case.bulk,
            case=case.name,
            database=database,
            installed=self.installed.get(case.needs or "", ""),
        )
        try:
            figures = run_case(case.module, job)
            self._verify(figures, job)
        except (CaseFailed, subprocess.SubprocessError) as error:
            self.results.failures[case.name] = str(error)
            print(f"{case.name}: FAILED: {error}", file=sys.stderr, flush=True)
            return
        self.results.runs.setdefault(case.name, []).append(figures)
        shown = f"{figures.rate:,.0f} messages/s, CPU {figures.cpu_us:.2f} us each"
        print(f"{case.name}: {shown}", file=sys.stderr, flush=True)

    def _verify(self, figures: Figures, job: Job) -> None:
        """Raise `CaseFailed` unless every record is in the log, every row in the database, or every message read."""
        if figures.rows is not None and (found := stored_rows(job.database)) != figures.rows:
            raise CaseFailed(f"the database has {found} rows instead of {figures.rows}")
        if figures.written and (found := self.topics.records(job.topic)) != figures.written:
            raise CaseFailed(f"the log has {found} records instead of {figures.written}")
        if figures.next_offsets is not None and figures.next_offsets != job.messages:
            raise CaseFailed(f"read up to {figures.next_offsets} instead of {job.messages}")


if __name__ == "__main__":
    sys.exit(main())
