# SPDX-License-Identifier: Apache-2.0
"""How long a write of the API takes while the evaluator writes, too: ``python -m benchmarks.alarms.alarm_writes``.

In turn a definition is created, changed and deleted, the state of an alarm is set by hand, and, during a round, an
alarm is deleted; once a definition is deleted that has alarms. So it goes on, one write after the other, until the
evaluator is done with a round of so many alarms that all change, or with the merge of a batch: of as many new alarms,
and of windows of alarms that are known. Without HTTP; another process evaluates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.alarms import rounds_growth
from benchmarks.alarms.rounds_growth import DRIVERS, JOB, TITLES
from benchmarks.databases import Databases
from benchmarks.job import Stopwatch
from benchmarks.runner.table import show_table
from monasca_common.alarms.alarm_tables import Alarms
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.alarms.errors import UnknownId
from monasca_common.kafka.clock import SystemClock
from monasca_common.models.series import Series, series_id
from monasca_common.pipeline.errors import DefinitionsChanged
from monasca_common.pipeline.evaluate import active, window_table
from monasca_common.pipeline.evaluate.batch import MOST_TRIES, Merging
from monasca_common.pipeline.evaluate.folding import Folding
from monasca_common.pipeline.evaluate.horizon import Look
from monasca_common.pipeline.evaluate.matching import SubExpressionIndex
from monasca_common.pipeline.evaluate.rounds import Rounds
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage import StorageSettings
from monasca_common.storage.sql import tables

_HEAD = [
    "Database",
    "Meanwhile",
    "Seconds",
    "Writes",
    "Median, s",
    "Longest, s",
    "Of them a deletion, s",
    "Load before",
]
_DEFINITIONS = 100
_ATTEMPT = 1
_MINUTE_MS = 60_000
_PATIENCE_SECONDS = 120.0  # of a writer: the figure is how long it takes, not whether it gives up

_Write = Callable[[], None]


def main() -> int:
    if len(sys.argv) == 2 and "://" in sys.argv[1]:  # the process that merges
        print(json.dumps(_merge(sys.argv[1])))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alarms.alarm_writes", description=__doc__)
    parser.add_argument("--alarms", type=int, default=100_000)
    parser.add_argument("--drivers", nargs="+", default=DRIVERS, choices=DRIVERS)
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    rows = []
    with Databases() as databases:
        for driver in arguments.drivers:
            for row in _rows(databases, driver, arguments.alarms):
                rows.append([TITLES[driver], *row])
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    show_table(_HEAD, rows, arguments.rst)
    return 0


def _rows(databases: Databases, driver: str, alarms: int) -> Iterator[list[str]]:
    now_ms = time.time_ns() // 1_000_000 // _MINUTE_MS * _MINUTE_MS
    with databases.new(driver) as url:
        rounds_growth.fill(driver, url, alarms, 100, now_ms)
        command = ["benchmarks.alarms.rounds_growth", url, "100", str(now_ms)]
        yield _row(driver, url, f"A round of {alarms:,} alarms", command, deletes_alarms=True)
    with databases.new(driver) as url:
        _define(driver, url)
        for what in ("new", "known"):
            _stage(url, alarms, now_ms)
            now_ms += _MINUTE_MS
            command = ["benchmarks.alarms.alarm_writes", url]
            yield _row(driver, url, f"A merge of {alarms:,} {what} alarms", command, deletes_alarms=False)


def _row(driver: str, url: str, what: str, command: list[str], *, deletes_alarms: bool) -> list[str]:
    load = os.getloadavg()[0]
    settings = StorageSettings(driver, url, read_timeout_seconds=_PATIENCE_SECONDS)
    database = AlarmsDatabase(settings)
    writes = cycle(_writes(database, deletes_alarms=deletes_alarms))
    evaluator = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    taken: dict[str, list[float]] = {}
    while evaluator.poll() is None:
        name, write = next(writes)
        with Stopwatch() as watch:
            write()
        taken.setdefault(name, []).append(watch.seconds)
    database.close()
    assert evaluator.stdout is not None and not evaluator.returncode
    seconds = json.loads(evaluator.stdout.read())["seconds"]
    every = [each for some in taken.values() for each in some]
    deletions = max(each for name, some in taken.items() if name.startswith("delete") for each in some)
    figures = (statistics.median(every), max(every), deletions)
    return [what, f"{seconds:.1f}", str(len(every)), *(f"{each:.2f}" for each in figures), f"{load:.1f}"]


def _writes(database: AlarmsDatabase, *, deletes_alarms: bool) -> list[tuple[str, _Write]]:
    """By name; each does something else each time."""
    definitions, alarms = AlarmDefinitions(database), Alarms(database)
    made: list[str] = []
    ids = iter(database.rows(sa.select(tables.alarm.c.id).order_by(tables.alarm.c.match_key)))
    old = [row.id for row in database.rows(sa.select(tables.alarm_definition.c.id))]

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    def create() -> None:
        made.append(definitions.create("t", AlarmDefinition(f"new {time.time_ns()}", "max(mem) > 5"), now_ms()).id)

    def change() -> None:
        definitions.change("t", made[-1], lambda found: replace(found, description="changed"), now_ms())

    def delete() -> None:
        definitions.delete("t", made.pop())

    def delete_with_alarms() -> None:
        if len(old) == _DEFINITIONS:
            definitions.delete("t", old.pop())

    def set_state() -> None:
        if row := next(ids, None):
            with contextlib.suppress(UnknownId):
                alarms.change("t", row.id, lambda found: replace(found, state="UNDETERMINED"), now_ms())

    def delete_alarm() -> None:
        if deletes_alarms and (row := next(ids, None)):
            with contextlib.suppress(UnknownId):
                alarms.delete("t", row.id)

    several = [("create", create), ("change", change), ("state", set_state), ("delete", delete)]
    return [*several, ("delete alarm", delete_alarm), ("delete with alarms", delete_with_alarms)]


def _define(driver: str, url: str) -> None:
    database = AlarmsDatabase(StorageSettings(driver, url))
    for number in range(_DEFINITIONS):
        made = AlarmDefinition(f"d{number}", f"avg(cpu.user_perc{{rack=r{number}}}) > 85", match_by=("hostname",))
        AlarmDefinitions(database).create("t", made, 0)
    database.close()


def _stage(url: str, alarms: int, now_ms: int) -> None:
    """A window and a series of each host."""
    store = OffsetStore(url)
    with store.reading() as connection:
        known = active.current(connection)
    index, folding = SubExpressionIndex(known.sub_expressions), Folding()
    for number in range(alarms):
        host = {"hostname": f"host-{number}", "rack": f"r{number % _DEFINITIONS}", "service": "nova"}
        series = Series(series_id("t", "r", "cpu.user_perc", host), "t", "r", "cpu.user_perc", host)
        for target in index.targets(series):
            folding.series(target, series).add((float(now_ms), 0, number, 90.0))
    with store.writing() as connection:
        connection.execute(tables.alarm_staging.delete())
        window_table.insert(connection, JOB, _ATTEMPT, now_ms, folding.rows())
    with store.writing() as connection:
        connection.execute(sa.text("ANALYZE"))


def _merge(url: str) -> dict[str, Any]:
    """As `Evaluation` does: again, if definitions change meanwhile, without those that are gone."""
    store = OffsetStore(url)
    merging = Merging(JOB, 0, 0, store, Rounds(store, JOB, 0, 0), SystemClock())
    known, staged = _known(store)
    with Stopwatch() as watch:
        for tries in range(1, MOST_TRIES + 1):
            try:
                with store.writing() as connection:
                    look, is_last = Look(time.time_ns() // 1_000_000, {0}), tries == MOST_TRIES
                    merging.merge(connection, JOB, staged, known, look, takes_what_fits=is_last)
                break
            except DefinitionsChanged:
                known, staged = _known(store)
    return {"seconds": watch.seconds}


def _known(store: OffsetStore) -> tuple[active.ActiveDefinitions, StagedAttempts]:
    with store.writing() as connection:
        window_table.leave_out_changed(connection, JOB, StagedAttempts((_ATTEMPT,), 0))
        rows = connection.scalar(sa.select(sa.func.count()).select_from(tables.alarm_staging))
        return active.current(connection), StagedAttempts((_ATTEMPT,), rows or 0)


if __name__ == "__main__":
    sys.exit(main())
