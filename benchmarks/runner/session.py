# SPDX-License-Identifier: Apache-2.0
"""Runs the cases on one broker: each in its own process, repeats taking turns, every record counted."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from benchmarks.databases import Databases, stored_rows
from benchmarks.job import CaseFailed, Figures, Job, run_case
from benchmarks.runner import environments
from benchmarks.runner.plan import Case, Section
from benchmarks.runner.results import Results
from benchmarks.topics import Topics
from monasca_common.devbroker import KafkaCluster


class Session:
    """``cluster`` is for sections that need one."""

    def __init__(self, cluster: KafkaCluster | None, results: Results, *, quick: bool) -> None:
        self._cluster = cluster
        self._results = results
        self._quick = quick
        self._groups = 0

    def run(self, sections: Iterable[Section]) -> None:
        for section in sections:
            length = "quick, too short for more than a first impression" if self._quick else "full"
            load = f"load {os.getloadavg()[0]:.1f} before"
            self._results.measured[section.name] = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {length}, {load}"
            if section.stores and section.reads:
                self._persist(section)
            elif section.stores:
                self._store(section)
            elif section.reads:
                self._read(section)
            else:
                self._write(section)

    @cached_property
    def _topics(self) -> Topics:
        assert self._cluster is not None
        return Topics(self._cluster)

    def _store(self, section: Section) -> None:
        with Databases() as databases:
            for _ in range(section.runs(quick=self._quick)):
                for case in section.cases:
                    with databases.new() as url:
                        self._measure(case, Job("", "", case.count(quick=self._quick), case=case.name, database=url))

    def _persist(self, section: Section) -> None:
        backlog = section.backlog(quick=self._quick)
        with contextlib.ExitStack() as stack:
            databases = stack.enter_context(Databases())
            topics = {}
            for repeats in sorted({case.repeats for case in section.cases}):
                topics[repeats] = stack.enter_context(self._topics.new())
                stack.enter_context(self._topics.new(f"{topics[repeats]}.dlq"))
                self._fill("storage.fill_metrics", topics[repeats], backlog, section, case="repeats" if repeats else "")
            for repeat in range(section.runs(quick=self._quick)):
                for case in _in_turn(section, repeat):
                    with databases.new(case.database) as url:
                        self._measure(case, replace(self._job(case, topics[case.repeats]), database=url))

    def _write(self, section: Section) -> None:
        for repeat in range(section.runs(quick=self._quick)):
            for case in _in_turn(section, repeat):
                with self._topics.new() as topic:
                    self._measure(case, self._job(case, topic))

    def _read(self, section: Section) -> None:
        backlog = section.backlog(quick=self._quick)
        with self._topics.new() as topic:
            self._fill("messaging.fill", topic, backlog, section)
            for _ in range(section.runs(quick=self._quick)):
                for case in section.cases:
                    self._measure(case, self._job(case, topic))

    def _fill(self, module: str, topic: str, backlog: int, section: Section, *, case: str = "") -> None:
        print(f"writing {backlog:,} messages for {section.name} ...", file=sys.stderr, flush=True)
        run_case(module, Job(self._servers(), topic, backlog, case=case))
        if self._topics.records(topic) != backlog:
            raise CaseFailed(f"the backlog has {self._topics.records(topic)} records instead of {backlog}")

    def _job(self, case: Case, topic: str) -> Job:
        self._groups += 1
        return Job(
            servers=self._servers(),
            topic=topic,
            messages=case.count(quick=self._quick),
            group=f"benchmark-{self._groups}",
            threads=case.threads,
            message_ids=case.message_ids,
            bulk=case.bulk,
            case=case.name,
        )

    def _servers(self) -> str:
        assert self._cluster is not None
        return self._cluster.bootstrap_servers

    def _measure(self, case: Case, job: Job) -> None:
        if case.name in self._results.failures:
            return
        try:
            interpreter = sys.executable if case.environment is None else environments.python(case.environment)
            figures = run_case(case.module, job, interpreter)
            self._count(figures, job)
        except (CaseFailed, subprocess.SubprocessError) as error:
            self._results.failures[case.name] = str(error)
            print(f"{case.name}: FAILED: {error}", file=sys.stderr, flush=True)
            return
        prefix = f"{case.environment}: " if case.environment else ""
        self._results.versions.update({prefix + name: version for name, version in figures.versions.items()})
        self._results.runs.setdefault(case.name, []).append(figures)
        print(f"{case.name}: {_one_line(figures)}", file=sys.stderr, flush=True)

    def _count(self, figures: Figures, job: Job) -> None:
        if figures.rows is not None:
            there = stored_rows(job.database)
            if there != figures.rows:
                raise CaseFailed(f"the database has {there} rows instead of {figures.rows}")
        elif figures.written:
            there = self._topics.records(job.topic)
            if there != figures.written:
                raise CaseFailed(f"the log has {there} records instead of {figures.written}")
        elif figures.next_offsets is not None and figures.next_offsets != job.messages:
            raise CaseFailed(f"read up to {figures.next_offsets} instead of {job.messages}")


def _in_turn(section: Section, repeat: int) -> Iterable[Case]:
    """Now one and now the other is first, because the first has a machine that did something else before."""
    return section.cases if repeat % 2 == 0 else reversed(section.cases)


def _one_line(figures: Figures) -> str:
    if figures.p99_ms is not None:
        return f"p50 {figures.p50_ms:.2f} ms, p99 {figures.p99_ms:.2f} ms"
    if figures.peak_mb is not None:
        return f"at most {figures.peak_mb:.0f} MB in {figures.seconds:.0f} s"
    return f"{figures.rate:,.0f} messages/s, CPU {figures.cpu_us:.2f} us each"
