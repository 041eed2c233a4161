# SPDX-License-Identifier: Apache-2.0
"""Draws results for the documentation: ``python -m benchmarks.runner.plot RESULTS.json PLOT.svg``.

The only part that needs matplotlib; the benchmark runs it in an environment of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.runner.plan import SECTIONS, Section
from benchmarks.runner.results import Results

_OURS, _PEERS = "#2a6f97", "#b0b7bf"
_BAR = 0.42  # of the height that a case has
_PEER_MODULES = ("bare", "old", "counting", "arroyo")
_PANELS = ("producing", "publishing", "posting", "consuming", "persisting", "latency", "memory")


def draw(results: Results, path: Path) -> None:
    sections = {section.name: section for section in SECTIONS}
    shown = [sections[name] for name in _PANELS if any(case.name in results.runs for case in sections[name].cases)]
    heights = [3 if section.name == "memory" else len(section.cases) for section in shown]
    matplotlib.rcParams.update({"svg.hashsalt": "benchmarks", "font.size": 9})
    figure, panels = pyplot.subplots(
        len(shown), figsize=(8, 0.46 * sum(heights) + 0.7 * len(shown)), height_ratios=heights, squeeze=False
    )
    for axes, section in zip(panels[:, 0], shown, strict=True):
        if section.name == "memory":
            _memory(axes, results)
        else:
            figure_name = "p99_ms" if section.name == "latency" else "rate"
            _bars(axes, results, section, figure_name)
        axes.set_title(section.title.partition(";")[0], loc="left", fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _bars(axes: Axes, results: Results, section: Section, figure: str) -> None:
    cases = [case for case in section.cases if case.name in results.runs]
    spreads = [results.spread(case.name, figure) for case in cases]
    scale = 1.0 if figure == "p99_ms" else 1e-3
    medians = [spread.median * scale for spread in spreads]
    reach = [
        [(spread.median - spread.low) * scale for spread in spreads],
        [(spread.high - spread.median) * scale for spread in spreads],
    ]
    colours = [_PEERS if case.module.endswith(_PEER_MODULES) or "-bare" in case.name else _OURS for case in cases]
    places = range(len(cases))
    axes.barh(places, medians, xerr=reach, color=colours, ecolor="#555555", height=_BAR)
    for place, case, median, spread in zip(places, cases, medians, spreads, strict=True):
        label = f"  {median:.1f}" if figure == "p99_ms" else f"  {median:,.0f}"
        axes.text(spread.high * scale, place, label, va="center")
        axes.text(0, place - _BAR * 0.6, f" {case.title}", va="bottom")  # beside the bar it would leave no room for it
    axes.set_yticks([])
    axes.set_ylim(len(cases) - 0.6, -0.9)
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds, 99th percentile" if figure == "p99_ms" else "thousand messages a second")


def _memory(axes: Axes, results: Results) -> None:
    run = results.runs["memory"][0]
    seconds = [run.seconds * place / len(run.memory_mb) for place in range(len(run.memory_mb))]
    axes.plot(seconds, run.memory_mb, color=_OURS)
    axes.axhline(150, color="#c1121f", linestyle=":", label="150 MB")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("resident MB")
    axes.legend(loc="lower right", frameon=False)


if __name__ == "__main__":
    draw(Results.read(Path(sys.argv[1])), Path(sys.argv[2]))
