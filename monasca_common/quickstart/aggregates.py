# SPDX-License-Identifier: Apache-2.0
"""Hourly averages of the posted metrics: computed on Spark, published to Kafka, stored by the persister."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from monasca_common.devbroker.supervisor import wait_until
from monasca_common.quickstart.services import ServiceFailed, ServiceProcess

SUFFIX = "_agg"
_NAMES = ("cpu.percent", "mem.usable_mb", "load.avg_1_min")
JOB = "pipeline run aggregate --once -f json"
_JOB_SECONDS = 600.0  # the first job fetches Spark's Kafka connector
_STORED_SECONDS = 30.0
_POLL_SECONDS = 0.1
_RAW_AND_AGGREGATED = """
    SELECT raw.name, aggregated.time, aggregated.value, json_extract(aggregated.value_meta, '$.record_count'),
           json_extract(aggregated.value_meta, '$.provisional'), count(*), avg(measured.value)
    FROM series AS raw
    JOIN measurements AS measured ON measured.series_id = raw.id
    JOIN series AS total ON total.name = raw.name || ?
    JOIN measurements AS aggregated
         ON aggregated.series_id = total.id AND aggregated.time = measured.time / 3600000 * 3600000
    GROUP BY raw.name, aggregated.time ORDER BY raw.name, aggregated.time
"""


@dataclass(frozen=True, slots=True)
class HourlyAverage:
    """An average. ``provisional``: the hour is not over. ``records``: those read by Spark. ``rows``: those stored."""

    name: str
    hour_ms: int
    average: float
    records: int
    provisional: bool
    rows: int
    average_of_rows: float


def write_specifications(folder: Path) -> None:
    """Write the specifications that the configuration names."""
    transforms = [json.dumps(_transform(name)) for name in _NAMES]
    pre_transforms = [
        json.dumps({"event_type": name, "metric_id_list": [name], "required_raw_fields_list": []}) for name in _NAMES
    ]
    (folder / "transform_specs.jsonl").write_text("\n".join(transforms) + "\n")
    (folder / "pre_transform_specs.jsonl").write_text("\n".join(pre_transforms) + "\n")


def averages_of(job: ServiceProcess, database: Path) -> list[HourlyAverage]:
    """Wait until the job has ended and its rows are stored. Raises `ServiceFailed`."""
    if not wait_until(lambda: job.finished() is not None, _JOB_SECONDS, every=_POLL_SECONDS):
        raise ServiceFailed(f"the job aggregate took longer than {_JOB_SECONDS:.0f} s: {job.last_log_line()}")
    lines = reversed((job.finished() or "").splitlines())  # most lines are from Java's log
    result = next((line for line in lines if line.startswith("{")), None)
    if result is None:
        raise ServiceFailed(f"the job aggregate printed no result: {job.last_log_line()}")
    messages = json.loads(result)["results"]["published_messages"]
    if messages < len(_NAMES):
        raise ServiceFailed(
            f"{messages} aggregates were published, but there are {len(_NAMES)} metrics: {job.last_log_line()}"
        )
    is_stored = wait_until(lambda: len(stored(database)) >= messages, _STORED_SECONDS, every=_POLL_SECONDS)
    found = stored(database)
    if not is_stored:
        raise ServiceFailed(
            f"{messages} aggregates were published, but after {_STORED_SECONDS:.0f} s only {len(found)} are stored"
        )
    return found


def show(averages: list[HourlyAverage], console: Console) -> None:
    table = Table(title="Hourly averages by the pipeline on Spark, and their rows", title_justify="left")
    table.add_column("metric", no_wrap=True)
    for heading in ("hour", "average", "records", "average of rows", "rows"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in averages:
        hour = time.strftime("%H:%M", time.gmtime(each.hour_ms / 1000))
        table.add_row(
            each.name + SUFFIX,
            hour + ("*" if each.provisional else ""),
            f"{each.average:,.4f}",
            f"{each.records:,}",
            f"{each.average_of_rows:,.4f}",
            f"{each.rows:,}",
        )
    console.print(table)
    if any(each.provisional for each in averages):
        console.print("* provisional: the hour (UTC) is not over")


def stored(database: Path) -> list[HourlyAverage]:
    """Return the stored averages."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute(_RAW_AND_AGGREGATED, (SUFFIX,)).fetchall()
    return [
        HourlyAverage(name, hour_ms, average, int(records), provisional == "true", count, average_of_rows)
        for name, hour_ms, average, records, provisional, count, average_of_rows in rows
    ]


def _transform(name: str) -> dict[str, object]:
    return {
        "metric_id": name,
        "aggregation_params_map": {
            "aggregation_pipeline": {
                "source": "streaming",
                "usage": "fetch_quantity",
                "setters": ["set_aggregated_metric_name", "set_aggregated_period"],
                "insert": ["insert_data"],
            },
            "aggregated_metric_name": name + SUFFIX,
            "aggregation_period": "hourly",
            "aggregation_group_by_list": ["host"],
            "usage_fetch_operation": "avg",
            "filter_by_list": [],
            "dimension_list": ["host", "aggregation_period"],
        },
    }
