# SPDX-License-Identifier: Apache-2.0
"""All that one run of the benchmark measured: medians, what is required of them, and its JSON."""

from __future__ import annotations

import json
import operator
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.job import Figures
from benchmarks.runner.plan import REQUIRED, Required


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Verdict:
    required: Required
    value: Spread
    cpu: float | None  # the same ratio by CPU time, which is steadier
    met: bool


@dataclass(frozen=True, slots=True)
class Results:
    """``measured``: when and how, by section; sections may be of different days."""

    machine: dict[str, str]
    measured: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    runs: dict[str, list[Figures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def spread(self, case: str, figure: str) -> Spread:
        return _spread([_value(run, figure) for run in self.runs[case]])

    def verdicts(self) -> Iterator[Verdict]:
        """The median of single repeats, each beside its neighbour in time: what else runs on the machine changes from
        minute to minute, and both of a pair have the same of it."""
        for required in REQUIRED:
            if self.runs.get(required.case) and (required.peer is None or self.runs.get(required.peer)):
                yield self._verdict(required)

    def _verdict(self, required: Required) -> Verdict:
        mine = [_value(run, required.figure) for run in self.runs[required.case]]
        if required.peer is None:
            value = _spread(mine)
            return Verdict(required, value, None, met=value.median <= required.limit)
        theirs = [_value(run, required.figure) for run in self.runs[required.peer]]
        compare = operator.truediv if required.figure == "rate" else operator.sub
        singles = [compare(a, b) for a, b in zip(mine, theirs, strict=False)]
        value = _spread(singles)
        if required.figure != "rate":
            return Verdict(required, value, None, met=value.median <= required.limit)
        pairs = zip(self.runs[required.peer], self.runs[required.case], strict=False)
        cpu = statistics.median(theirs.cpu_us / mine.cpu_us for theirs, mine in pairs)
        return Verdict(required, value, cpu, met=value.median >= required.limit)

    def updated(self, newer: Results) -> Results:
        """These, with the sections of ``newer`` in place of their older figures."""
        return Results(
            newer.machine,
            self.measured | newer.measured,
            self.versions | newer.versions,
            self.runs | newer.runs,
            self.failures | newer.failures,
        )

    def write(self, path: Path) -> None:
        content = asdict(self)
        content["verdicts"] = [asdict(verdict) for verdict in self.verdicts()]
        path.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        content: dict[str, Any] = json.loads(path.read_text())
        content.pop("verdicts")
        content["runs"] = {case: [Figures(**run) for run in runs] for case, runs in content["runs"].items()}
        return cls(**content)


def _value(run: Figures, figure: str) -> float:
    return float(getattr(run, figure))


def _spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))
