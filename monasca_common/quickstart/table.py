# SPDX-License-Identifier: Apache-2.0
"""The results of a run: tables, and one JSON object for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from monasca_common.quickstart.alarm import AlarmSummary
from monasca_common.quickstart.formats import FormatsSummary
from monasca_common.quickstart.prometheus import PrometheusSummary


@dataclass(frozen=True, slots=True)
class StageResult:
    """``error``: why the stage failed, or ``None`` if it succeeded."""

    name: str
    seconds: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The counts of metrics and events, and the latencies from the POST of a bulk to its last row, in ms.

    ``late``: rows that do not exist because their messages are unread; ``lost``: the other missing rows.
    ``aggregates``: rows of the pipeline. ``alarm``, ``formats``, ``prometheus``: `None` until their stages have run.
    ``stages``: in order.
    """

    seconds: float = 0.0
    posted: int = 0
    acknowledged: int = 0
    rows: int = 0
    duplicates: int = 0
    lost: int = 0
    late: int = 0
    repeated_posts: int = 0
    kafka_freezes: int = 0
    persister_kills: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    aggregates: int = 0
    alarm: AlarmSummary | None = None
    formats: FormatsSummary | None = None
    prometheus: PrometheusSummary | None = None
    stages: tuple[StageResult, ...] = ()

    @property
    def _parts(self) -> tuple[AlarmSummary | FormatsSummary | PrometheusSummary | None, ...]:
        return self.alarm, self.formats, self.prometheus

    @property
    def good(self) -> bool:
        if any(stage.error for stage in self.stages) or not all(part is None or part.good for part in self._parts):
            return False
        if not (self.posted or self.prometheus):
            return False
        return self.acknowledged == self.posted == self.rows and not (self.lost or self.duplicates)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least ``share`` of all values do not exceed; ``None`` for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def show(outcome: RunSummary, console: Console) -> None:
    items: dict[str, str | int] = {
        "posted": outcome.posted,
        "acknowledged": outcome.acknowledged,
        "rows stored": outcome.rows,
        "duplicates": outcome.duplicates,
        "lost": outcome.lost,
        **({"late (unread in Kafka)": outcome.late} if outcome.late else {}),
        "Kafka frozen (SIGSTOP)": outcome.kafka_freezes,
        "persister killed (SIGKILL)": outcome.persister_kills,
        "requests repeated with the same Idempotency-Key": outcome.repeated_posts,
        "p50 from POST to row": _ms(outcome.p50_ms),
        "p99 from POST to row": _ms(outcome.p99_ms),
    }
    _show_items("From POST to row", items, console)


def show_formats(summary: FormatsSummary, console: Console) -> None:
    items = {
        "messages in Avro, from the API": summary.avro,
        "messages in JSON, from the pipeline": summary.json,
        "messages without repeats of the same id": summary.messages,
        "rows of the sink": summary.rows,
    }
    _show_items("Two formats in the topic metrics", items, console)


def show_prometheus(summary: PrometheusSummary, console: Console) -> None:
    items = {"samples in Prometheus": summary.samples, "rows of these samples": summary.rows}
    _show_items("From Prometheus to row", items, console)


def _show_items(title: str, items: Mapping[str, str | int], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("item")
    table.add_column("value", justify="right")
    for name, value in items.items():
        table.add_row(name, value if isinstance(value, str) else f"{value:,}")
    console.print(table)


def show_stages(stages: Sequence[StageResult], console: Console) -> None:
    table = Table(title="Stages", title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("result")
    for stage in stages:
        result = "done" if stage.error is None else f"failed: {stage.error}"
        table.add_row(
            stage.name, f"{stage.seconds:.1f}", escape(result), style=None if stage.error is None else "bold red"
        )
    console.print(table)


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f} ms"
