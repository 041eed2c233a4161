# SPDX-License-Identifier: Apache-2.0
"""How long a round takes with 1,000, 10,000 and 100,000 alarms that are due in the same minute, of which 1 % or all
change. Each has its own process, whose memory and CPU are those of the round, without the database's.

Alarms are those of 100 definitions; each has one series and one window that ends.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.databases import Databases, add_history_days
from benchmarks.job import Stopwatch
from benchmarks.runner.table import show_table
from monasca_common.alarms.database import AlarmsDatabase, new_id
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.pipeline.evaluate import progress
from monasca_common.pipeline.evaluate.horizon import Look
from monasca_common.pipeline.evaluate.progress import StoredProgress
from monasca_common.pipeline.evaluate.rounds import CHUNK_ALARMS, Rounds
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage import StorageSettings
from monasca_common.storage.sql import tables

COUNTS = (1_000, 10_000, 100_000)
PERCENTS = (1, 100)
DRIVERS = ("postgresql", "sqlite")
TITLES = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}
_HEAD = ["Database", "Alarms", "Changing", "Seconds", "CPU s", "A chunk, s", "Memory, MB", "Load before"]
JOB = "benchmark"
_DEFINITIONS = 100
_ROWS_AT_ONCE = 20_000
_PERIOD_MS, DELAY_MS = 60_000, 30_000


def main() -> int:
    if len(sys.argv) == 4:  # the process of one round
        url, percent, now_ms = sys.argv[1:]
        print(json.dumps(_measure(url, int(percent), int(now_ms))))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alarms.rounds_growth", description=__doc__)
    parser.add_argument("--alarms", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--drivers", nargs="+", default=DRIVERS, choices=DRIVERS)
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    rows = []
    with Databases() as databases:
        for driver in arguments.drivers:
            for count in arguments.alarms:
                for percent in PERCENTS:
                    with databases.new(driver) as url:
                        rows.append(_row(driver, url, count, percent))
                    print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    show_table(_HEAD, rows, arguments.rst)
    return 0


def _row(driver: str, url: str, count: int, percent: int) -> list[str]:
    now_ms = time.time_ns() // 1_000_000 // _PERIOD_MS * _PERIOD_MS
    fill(driver, url, count, percent, now_ms)
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "benchmarks.alarms.rounds_growth", url, str(percent), str(now_ms)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    if found["alarms"] != count or found["transitions"] != count * percent // 100:
        raise RuntimeError(f"{count} alarms were to be evaluated, {percent} % were to change: {found}")
    seconds = f"{found['seconds']:.1f}", f"{found['cpu_seconds']:.1f}"
    chunk = f"{found['seconds'] / -(-count // CHUNK_ALARMS):.2f}"
    return [TITLES[driver], f"{count:,}", f"{percent} %", *seconds, chunk, str(found["mb"]), f"{load:.1f}"]


def _measure(url: str, percent: int, now_ms: int) -> dict[str, Any]:
    rounds = Rounds(OffsetStore(url), JOB, DELAY_MS, 0, writes_history=True)
    with Stopwatch() as watch:
        report = rounds.run(Look(now_ms + DELAY_MS, {0}))
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    taken = {"seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds, "mb": memory_mb}
    return {"alarms": report.alarms, "transitions": report.transitions, **taken}


def fill(driver: str, url: str, count: int, percent: int, now_ms: int) -> None:
    database = AlarmsDatabase(StorageSettings(driver, url))
    definitions = AlarmDefinitions(database)
    made = [
        definitions.create("t", AlarmDefinition(f"d{number}", "avg(cpu.user_perc{service=nova}) > 85"), now_ms)
        for number in range(_DEFINITIONS)
    ]
    store = OffsetStore(url)
    with store.writing() as connection:
        if driver == "postgresql":
            add_history_days(connection, now_ms, now_ms)
        subs = dict(
            connection.execute(
                sa.select(tables.alarm_sub_expression.c.definition_id, tables.alarm_sub_expression.c.id)
            ).all()
        )
        rows = ((number, made[number % _DEFINITIONS].id) for number in range(count))
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            _insert(connection, some, subs, count * percent // 100, now_ms)
        progress.save(connection, JOB, StoredProgress(now_ms - _PERIOD_MS + DELAY_MS, DELAY_MS, seen_ms=now_ms))
    with store.writing() as connection:
        connection.execute(sa.text("ANALYZE"))
    database.close()


def _insert(
    connection: sa.Connection, some: list[tuple[int, str]], subs: dict[str, str], changing: int, now_ms: int
) -> None:
    each: dict[sa.Table, list[dict[str, Any]]] = {}
    for number, definition_id in some:
        for table, row in _rows(number, definition_id, subs[definition_id], number < changing, now_ms):
            each.setdefault(table, []).append(row)
    for table, rows in each.items():
        connection.execute(table.insert(), rows)


def _rows(
    number: int, definition_id: str, sub_id: str, changes: bool, now_ms: int
) -> Iterator[tuple[sa.Table, dict[str, Any]]]:
    alarm_id, key = new_id(), number.to_bytes(16, "big")
    host = {"hostname": f"host-{number}", "service": "nova"}
    times = dict.fromkeys(("state_updated", "updated", "created"), now_ms - 3_600_000)
    of_alarm = {"id": alarm_id, "definition_id": definition_id, "match_key": key, "match_values": [host["hostname"]]}
    yield tables.alarm, {**of_alarm, "tenant": "t", "state": "OK", "version": 0, **times}
    yield (
        tables.alarm_metric,
        {
            "alarm_id": alarm_id,
            "series_id": key,
            "tenant": "t",
            "name": "cpu.user_perc",
            "dimensions": host,
        },
    )
    state = {"state": "OK", "current_values": [50.0], "windows": 0, "empty_evaluations": 0, "decided": 0}
    yield tables.sub_alarm, {"alarm_id": alarm_id, "sub_expression_id": sub_id, **state}
    yield tables.alarm_part, {"alarm_id": alarm_id, "sub_expression_id": sub_id, "match_key": key}
    value = 90.0 if changes else 51.0
    partial = {"record_count": 1, "sums": repr(value * 2.0**-64), "least": value, "greatest": value, "readings": ""}
    window = {"window_start": now_ms - _PERIOD_MS, "windows": 0, "newest": now_ms - 1000.0}
    yield tables.alarm_window, {"sub_expression_id": sub_id, "match_key": key, **window, **partial}


if __name__ == "__main__":
    raise SystemExit(main())
