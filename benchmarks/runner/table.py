# SPDX-License-Identifier: Apache-2.0
"""Results as a table: for a terminal, and as reStructuredText for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.runner.plan import SECTIONS, Case
from benchmarks.runner.results import Results, Spread, Verdict

_TITLES = {case.name: case.title for section in SECTIONS for case in section.cases}
_COLUMNS = ("case", "median", "min - max", "CPU us/message")
_REQUIRED_COLUMNS = ("required", "measured", "min - max", "by CPU", "")


def text(results: Results) -> str:
    lines = [_headline(results), ""]
    for title, columns, rows in _tables(results):
        lines += [title, *_aligned([columns, *rows]), ""]
    lines += [f"FAILED {case}: {reason}" for case, reason in results.failures.items()]
    return "\n".join(lines).rstrip()


def restructured_text(results: Results) -> str:
    lines = [".. Made by: python -m benchmarks --document", "", _headline(results), ""]
    for title, columns, rows in _tables(results):
        lines += [rst_table(columns, rows, title)]
    return "\n".join(lines)


def rst_table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    lines = [f".. list-table:: {title}".rstrip(), "   :header-rows: 1", ""]
    for row in [head, *rows]:
        first, *rest = row
        lines += [f"   * - {first}", *(f"     - {cell}".rstrip() for cell in rest)]
    return "\n".join(lines) + "\n"


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], rst: Path | None) -> None:
    """``rst``: a file to write it to as well."""
    text = rst_table(head, rows)
    print(text)
    if rst:
        rst.write_text(text)


def _headline(results: Results) -> str:
    return ", ".join(f"{name} {value}" for name, value in {**results.machine, **results.versions}.items()) + "."


def _tables(results: Results) -> Iterator[tuple[str, Sequence[str], list[Sequence[str]]]]:
    for section in SECTIONS:
        rows = [_row(results, case) for case in section.cases if case.name in results.runs]
        if rows:
            yield f"{section.title} ({results.measured[section.name]})", _COLUMNS, rows
    verdicts = [_verdict(verdict) for verdict in results.verdicts()]
    if verdicts:
        yield "What is required", _REQUIRED_COLUMNS, verdicts


def _row(results: Results, case: Case) -> Sequence[str]:
    cpu = f"{results.spread(case.name, 'cpu_us').median:.2f}"
    first = results.runs[case.name][0]
    if first.p99_ms is not None:
        p50, p99 = results.spread(case.name, "p50_ms"), results.spread(case.name, "p99_ms")
        return case.title, f"p50 {p50.median:.2f} ms, p99 {p99.median:.2f} ms", f"p99 {_range(p99, '.2f')} ms", cpu
    if first.peak_mb is not None:
        peak = results.spread(case.name, "peak_mb")
        seconds = results.spread(case.name, "seconds").median
        return case.title, f"at most {peak.median:.0f} MB", f"over {seconds:.0f} s", cpu
    rate = results.spread(case.name, "rate")
    if first.request_p99_ms is not None:
        p50, p99 = results.spread(case.name, "request_p50_ms"), results.spread(case.name, "request_p99_ms")
        told = f"{rate.median:,.0f}/s; a request p50 {p50.median:.1f} ms, p99 {p99.median:.1f} ms"
        return case.title, told, f"{_range(rate, ',.0f')}/s", cpu
    return case.title, f"{rate.median:,.0f}/s", f"{_range(rate, ',.0f')}/s", cpu


def _verdict(verdict: Verdict) -> Sequence[str]:
    required, value = verdict.required, verdict.value
    title = _TITLES[required.case]
    peer = _TITLES[required.peer] if required.peer else ""
    met = "met" if verdict.met else "MISSED"
    if required.figure == "rate":
        wanted = f"{title}: at least {required.limit:g} x {peer}"
        return wanted, f"{value.median:.2f} x", _range(value, ".2f"), f"{verdict.cpu:.2f} x", met
    if required.figure == "p99_ms":
        wanted = f"{title}: p99 within {required.limit:g} ms of {peer}"
        return wanted, f"{value.median:+.1f} ms", _range(value, "+.1f"), "", met
    wanted = f"{title}: below {required.limit:g} MB"
    return wanted, f"{value.median:.0f} MB", _range(value, ".0f"), "", met


def _range(spread: Spread, form: str) -> str:
    return f"{spread.low:{form}} - {spread.high:{form}}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
