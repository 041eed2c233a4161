# SPDX-License-Identifier: Apache-2.0
"""Reads the content of a metrics chart from the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from monasca_common.operations.dashboard.metrics_api import ApiReader

#: The suffix of aggregates in the pipelines of the quickstart and of monasca-transform.
AGGREGATES = "_agg"
RAW = "raw"
FUNCTIONS = ("avg", "min", "max", "sum", "count")
MINUTES = (5, 15, 60, 360, 1440, 10_080)
PERIODS = (60, 300, 900, 3600)
MOST_SERIES = 8
_MOST_NAMES = 2000
_MOST_METRICS = 1000
_MOST_VALUES = 200
MOST_ALARMS = 3
_READ_ALARMS = 100
_ROW_PAGES = 10


@dataclass(frozen=True, slots=True)
class ChartQuestion:
    """The choices of a chart. ``dimensions``: only series with these. ``beside``: a second metric, drawn unaggregated.
    ``function``: `RAW` or one of `FUNCTIONS`, over ``period`` seconds."""

    name: str
    dimensions: Mapping[str, str] = field(default_factory=dict)
    minutes: int = 60
    function: str = RAW
    period: int = 300
    beside: str = ""


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """``points``: times in milliseconds since 1970 and values, ordered by time."""

    name: str
    dimensions: Mapping[str, str]
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class StateBand:
    """A period in which an alarm had a state. ``alarm``: its unique label."""

    alarm: str
    state: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class MetricChart:
    """``names``: of all metrics. ``values``: by dimension, of series of this name. ``notes``: what is not shown."""

    question: ChartQuestion
    start_ms: int
    end_ms: int
    names: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    series: tuple[ChartSeries, ...] = ()
    beside: tuple[ChartSeries, ...] = ()
    bands: tuple[StateBand, ...] = ()
    notes: tuple[str, ...] = ()


def read_names(api: ApiReader) -> tuple[str, ...]:
    """Return the names of all metrics. Raises `ApiUnavailable`, as all functions here."""
    found = api.find("/v2.0/metrics/names", {"limit": str(_MOST_NAMES)})
    return tuple(str(each["name"]) for each in found.elements)


def read_chart(api: ApiReader, question: ChartQuestion, names: tuple[str, ...], now_ms: int) -> MetricChart:
    start_ms = now_ms - question.minutes * 60_000
    metrics = api.find("/v2.0/metrics", {"name": question.name, "limit": str(_MOST_METRICS)})
    notes: list[str] = []
    if not metrics.is_whole:
        notes.append(f"There are more than {_MOST_METRICS:,} series; the lists have the dimensions of the first ones.")
    series = _measured(api, question, question.name, question.function, start_ms, notes)
    beside = _beside(api, question, start_ms, notes) if question.beside else ()
    return MetricChart(
        question,
        start_ms,
        now_ms,
        names,
        _values(each["dimensions"] for each in metrics.elements),
        series,
        beside,
        _bands(api, question, start_ms, now_ms, notes),
        tuple(notes),
    )


def _beside(api: ApiReader, question: ChartQuestion, start_ms: int, notes: list[str]) -> tuple[ChartSeries, ...]:
    """Filter by the chosen dimensions, or by none if no series matches: aggregates may have other dimensions."""
    found = _measured(api, question, question.beside, RAW, start_ms, notes)
    if found or not question.dimensions:
        return found
    return _measured(api, replace(question, dimensions={}), question.beside, RAW, start_ms, notes)


def _measured(
    api: ApiReader, question: ChartQuestion, name: str, function: str, start_ms: int, notes: list[str]
) -> tuple[ChartSeries, ...]:
    asked = {"name": name, "start_time": iso(start_ms), "group_by": "*"}
    if question.dimensions:
        asked["dimensions"] = _dimensions(question)
    if function == RAW:
        found = api.find("/v2.0/metrics/measurements", asked, pages=_ROW_PAGES)
    else:
        asked |= {"statistics": function, "period": str(question.period)}
        found = api.find("/v2.0/metrics/statistics", asked, pages=_ROW_PAGES)
    series: dict[str, ChartSeries] = {}
    for each in found.elements:  # a series may continue on the next page
        if not _is_chosen(question, each["dimensions"]):
            continue
        before = series[each["id"]].points if each["id"] in series else ()
        rows = each["measurements" if function == RAW else "statistics"]
        points = tuple((_time_ms(row[0]), float(row[1])) for row in rows)
        series[each["id"]] = ChartSeries(name, each["dimensions"], before + points)
    if not found.is_whole:
        notes.append(f"Not all measurements of {name} are shown: choose a shorter time, or averages.")
    if len(series) > MOST_SERIES:
        notes.append(f"{MOST_SERIES} of {len(series)} series of {name} are shown: choose dimensions.")
    return tuple(series.values())[:MOST_SERIES]


def _bands(
    api: ApiReader, question: ChartQuestion, start_ms: int, now_ms: int, notes: list[str]
) -> tuple[StateBand, ...]:
    """Return the state bands of this metric's alarms; per alarm, the oldest first."""
    bands: list[StateBand] = []
    for alarm in _alarms(api, question, notes):
        history = api.find(f"/v2.0/alarms/{alarm['id']}/state-history", {"start_time": iso(start_ms)}, pages=2)
        bands += state_bands(alarm, history.elements, start_ms, now_ms)
    return tuple(bands)


def _alarms(api: ApiReader, question: ChartQuestion, notes: list[str]) -> Sequence[Mapping[str, Any]]:
    """Return the alarms to show, the worst state first."""
    asked = {"metric_name": question.name, "sort_by": "state desc", "limit": str(_READ_ALARMS)}
    if question.dimensions:
        asked["metric_dimensions"] = _dimensions(question)
    found = api.find("/v2.0/alarms", asked)
    chosen = [
        alarm
        for alarm in found.elements
        if any(_is_chosen(question, metric["dimensions"]) for metric in alarm["metrics"])
    ]
    if len(chosen) > MOST_ALARMS or not found.is_whole:
        number = str(len(chosen)) if found.is_whole else f"more than {len(chosen)}"
        notes.append(f"{MOST_ALARMS} of {number} alarms on {question.name} are shown: choose dimensions.")
    return chosen[:MOST_ALARMS]


def state_bands(
    alarm: Mapping[str, Any], history: Sequence[Mapping[str, Any]], start_ms: int, now_ms: int
) -> list[StateBand]:
    """Return bands from the transitions since ``start_ms``; the first band has the first old state."""
    name = _alarm_label(alarm)
    changes = sorted((_time_ms(each["timestamp"]), str(each["old_state"]), str(each["new_state"])) for each in history)
    if not changes:
        since = max(start_ms, _time_ms(alarm["created_timestamp"]))
        return [StateBand(name, str(alarm["state"]), since, now_ms)]
    moments = [max(start_ms, min(now_ms, moment)) for moment, _, _ in changes]
    since = min(moments[0], max(start_ms, _time_ms(alarm["created_timestamp"])))
    bands = [StateBand(name, changes[0][1], since, moments[0])]
    for (_, _, state), began, ended in zip(changes, moments, [*moments[1:], now_ms], strict=True):
        bands.append(StateBand(name, state, began, ended))
    return [band for band in bands if band.end_ms > band.start_ms]


def _alarm_label(alarm: Mapping[str, Any]) -> str:
    """Return the definition's name with the metrics' common dimensions, which differ between its alarms."""
    name = str(alarm["alarm_definition"]["name"])
    dimensions = [set(metric["dimensions"].items()) for metric in alarm["metrics"]]
    common = sorted(set.intersection(*dimensions)) if dimensions else []
    shown = ", ".join(f"{key} {value}" for key, value in common)
    return f"{name} ({shown})" if shown else name


def _values(found: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    values: dict[str, set[str]] = {}
    for dimensions in found:
        for key, value in dimensions.items():
            values.setdefault(key, set()).add(value)
    return {key: tuple(sorted(values[key])[:_MOST_VALUES]) for key in sorted(values)}


def _dimensions(question: ChartQuestion) -> str:
    """Return the API's filter; for values that the query cannot contain, only the key (see `_is_chosen`)."""
    return ",".join(
        key if _has_separator(value) else f"{key}:{value}" for key, value in sorted(question.dimensions.items())
    )


def _has_separator(value: str) -> bool:
    return "," in value or "|" in value


def _is_chosen(question: ChartQuestion, dimensions: Mapping[str, str]) -> bool:
    return all(dimensions.get(key) == value for key, value in question.dimensions.items() if _has_separator(value))


def iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
