# SPDX-License-Identifier: Apache-2.0
"""The report: Markdown with SVG plots next to it."""

from __future__ import annotations

import html
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil

from endurance_run.faults import FAULTS, InjectedFault
from endurance_run.judgement import Slope, Tier
from monasca_common.devbroker.jars import kafka_version

_WIDTH, _HEIGHT, _MARGIN = 640, 200, 45
_COLOURS = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)
_PACKAGES = ("monasca-common", "confluent-kafka", "psycopg", "pyspark", "gunicorn")

Points = Sequence[tuple[float, float]]


@dataclass(slots=True)
class Outcome:
    """Everything that the report shows."""

    seed: int
    minutes: int
    rate: float
    command: str
    pieces: int = 1
    faults: list[InjectedFault] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    tiers: list[Tier] = field(default_factory=list)
    audit_rows: int = 0
    transitions: int = 0
    notifications: int = 0
    superseded: int = 0
    repeats: int = 0
    errors: int = 0
    slopes: list[Slope] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.violations


def write(path: Path, outcome: Outcome, series: Mapping[str, Points]) -> None:
    """Write the report to ``path``, and its plots into the same folder."""
    plots = []
    for quantity in sorted({name.rpartition(" ")[2] for name in series}):
        lines = {name.rpartition(" ")[0]: points for name, points in series.items() if name.endswith(f" {quantity}")}
        plot = path.with_name(f"{path.stem}-{quantity}.svg")
        faults = [fault.began / 60 for fault in outcome.faults]
        plot.write_text(svg(quantity.replace("_", " "), lines, faults))
        plots.append(f"![{quantity}]({plot.name})")
    path.write_text("\n\n".join([*_sections(outcome), "## Plots", *plots]) + "\n")


def _sections(outcome: Outcome) -> Iterable[str]:
    yield "# Endurance report"
    yield f"**Verdict: {'clean' if outcome.is_clean else f'{len(outcome.violations)} violations'}.**"
    if outcome.violations:
        yield "\n".join(f"- {each}" for each in outcome.violations)
    facts = {
        "Command": f"`{outcome.command}`",
        "Duration": f"{outcome.minutes} minutes in {outcome.pieces} piece{'s' if outcome.pieces > 1 else ''}",
        "Seed": outcome.seed,
        "Rate": f"{outcome.rate:g} metrics/s",
        "Machine": _machine(),
        "Versions": _versions(),
    }
    yield _table(("Fact", "Value"), facts.items())
    yield "## Counts"
    yield _table(
        ("Tier", "Expected", "Found", "Lost", "Duplicated", "Wrong"),
        ((t.name, t.expected, t.found, t.lost, t.duplicates, t.wrong) for t in outcome.tiers),
    )
    yield (
        f"Audit: {outcome.audit_rows} rows. Alarms: {outcome.transitions} transitions of the reference evaluator. "
        f"Notifications: {outcome.notifications} different ids accepted, {outcome.repeats} of them repeatedly, and "
        f"{outcome.superseded} superseded by the next transition before a retry. "
        f"Error lines in logs: {outcome.errors}."
    )
    yield "## Faults"
    yield _table(
        ("Second", "Fault", "Target", "Seconds"),
        ((f"{f.began:.0f}", f.kind, f.target, f"{f.ended - f.began:.0f}") for f in outcome.faults),
    )
    yield _table(("Fault", "What it does"), ((kind, FAULTS[kind][0]) for kind in FAULTS))
    if outcome.skipped:
        yield "Skipped: " + "; ".join(f"{kind} ({reason})" for kind, reason in outcome.skipped.items()) + "."
    yield "## Slopes of the processes that are never killed"
    yield _table(
        ("Quantity", "First", "Growth", "±", "Allowed", "Minutes", "Verdict"),
        (
            (
                s.name,
                *(f"{number:.2f}" for number in (s.first, s.growth, s.error, s.allowed)),
                f"{s.hours * 60:.0f}",
                "violated" if s.is_violated else "met",
            )
            for s in outcome.slopes
        ),
    )


def _table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _machine() -> str:
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = psutil.virtual_memory().total / 2**30
    cpu = model[1] if model else platform.machine()
    return f"{os.cpu_count()} cores ({cpu}), {memory:.0f} GiB, {platform.system()} {platform.release()}"


def _versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"Python {platform.python_version()}, Kafka {kafka_version()}, {packages}"


def svg(title: str, lines: Mapping[str, Points], marks: Iterable[float]) -> str:
    """Return a plot of lines over minutes. ``marks``: minutes of faults, drawn as vertical lines."""
    everything = [point for points in lines.values() for point in points]
    if not everything:
        everything = [(0.0, 0.0)]
    right = max(x for x, _ in everything) or 1.0
    top = max(y for _, y in everything) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        inner_width, inner_height = _WIDTH - 4 * _MARGIN, _HEIGHT - 2 * _MARGIN
        return round(_MARGIN + x / right * inner_width, 1), round(_HEIGHT - _MARGIN - y / top * inner_height, 1)

    (left, bottom), (end, head) = place(0, 0), place(right, top)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="10">',
        f'<text x="{left}" y="20" font-size="12">{html.escape(title)} by minute</text>',
        *(
            f'<line x1="{place(mark, 0)[0]}" x2="{place(mark, 0)[0]}" y1="{bottom}" y2="{head}" stroke="#ddd"/>'
            for mark in marks
            if mark <= right
        ),
        f'<path d="M{left},{head} V{bottom} H{end}" fill="none" stroke="black"/>',
        f'<text x="{left - 4}" y="{head + 4}" text-anchor="end">{top:.4g}</text>',
        f'<text x="{left - 4}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{end}" y="{bottom + 14}" text-anchor="end">{right:g}</text>',
    ]
    for number, (name, points) in enumerate(sorted(lines.items())):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = " ".join("{},{}".format(*place(x, y)) for x, y in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{end + 8}" y="{head + 12 * number}" fill="{colour}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
