# SPDX-License-Identifier: Apache-2.0
"""The figures of every run, their medians and ratios, as a table and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.job import Figures
from benchmarks.sections import REQUIRED, SECTIONS, Required


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ratios``: the ratio of each repeat to the peer's run closest in time. ``cpu``: the median ratio by CPU time,
    which varies less."""

    required: Required
    ratios: Sequence[float]
    cpu: float

    @property
    def met(self) -> bool:
        return statistics.median(self.ratios) >= self.required.ratio


@dataclass(frozen=True, slots=True)
class Results:
    """``machine``: its cores, and versions; ``measured``: time and load of the measurement, by section; ``runs``,
    ``failures`` and ``skipped``: by case."""

    machine: dict[str, str]
    measured: dict[str, str] = field(default_factory=dict)
    runs: dict[str, list[Figures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def verdicts(self) -> Iterator[Verdict]:
        for required in REQUIRED:
            pairs = list(zip(self.runs.get(required.case, ()), self.runs.get(required.peer, ()), strict=False))
            if pairs:
                cpu = statistics.median(theirs.cpu_us / ours.cpu_us for ours, theirs in pairs)
                yield Verdict(required, [ours.rate / theirs.rate for ours, theirs in pairs], cpu)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def text(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        lines = [f"{about}.", ""]
        for section in SECTIONS:
            rows = [_row(case.title, self.runs[case.name]) for case in section.cases if case.name in self.runs]
            if rows:
                columns = ("case", "median/s", "min - max", "CPU us/message", "p50, p99 ms")[: len(rows[0])]
                lines += [f"{section.title} ({self.measured[section.name]})", *_aligned([columns, *rows]), ""]
        verdicts = [_verdict(verdict) for verdict in self.verdicts()]
        if verdicts:
            titles = ("case", "peer", "required", "ratio", "min - max", "by CPU", "")
            lines += ["Ratios", *_aligned([titles, *verdicts])]
        lines += [f"SKIPPED {case}: {reason}" for case, reason in self.skipped.items()]
        return "\n".join([*lines, *(f"FAILED {case}: {reason}" for case, reason in self.failures.items())])


def _row(title: str, runs: Sequence[Figures]) -> Sequence[str]:
    rates = [run.rate for run in runs]
    cpu = f"{statistics.median(run.cpu_us for run in runs):.2f}"
    row = [title, f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f} - {max(rates):,.0f}", cpu]
    latencies = [(run.p50_ms, run.p99_ms) for run in runs if run.p50_ms is not None and run.p99_ms is not None]
    if latencies:
        row.append(", ".join(f"{statistics.median(column):.2f}" for column in zip(*latencies, strict=True)))
    return row


def _verdict(verdict: Verdict) -> Sequence[str]:
    required, ratios = verdict.required, verdict.ratios
    spread = f"{min(ratios):.2f} - {max(ratios):.2f}"
    ratio = f"{statistics.median(ratios):.2f} x"
    met = "met" if verdict.met else "below the goal" if required.goal else "MISSED"
    least = f"{required.ratio:g} x" + (" (goal)" if required.goal else "")
    return required.case, required.peer, least, ratio, spread, f"{verdict.cpu:.2f} x", met


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
