# SPDX-License-Identifier: Apache-2.0
"""The outcomes of the matrix as a table: for a terminal, and for the documentation."""

import importlib.metadata
import os
from collections.abc import Iterator, Sequence

from matrix_run import Counts, Outcome

_HEADINGS = ("Cell", "Kafka", "confluent-kafka", "Python", "Contracts", "Main job")
_COLUMNS = len(_HEADINGS)
_VERSIONS = 4  # columns, which every cell has


def text(outcomes: Sequence[Outcome]) -> str:
    """Columns of equal width, and below them why tests did not run."""
    rows = [_HEADINGS, *(_row(outcome) for outcome in outcomes)]
    # A reason stands for the last columns, and widens none.
    whole = [row[: _VERSIONS if len(row) < _COLUMNS else _COLUMNS] for row in rows]
    widths = [max(len(row[column]) for row in whole if column < len(row)) for column in range(_COLUMNS)]
    lines = ["  ".join(value.ljust(width) for value, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"* {note}" for note in notes(outcomes))])


def fragment(outcomes: Sequence[Outcome]) -> str:
    """A list-table of reStructuredText, with the same notes below it."""
    pyspark = importlib.metadata.version("pyspark")
    lines = [
        ".. Written by tools/matrix.py --rst; do not edit.",
        "",
        f"PySpark {pyspark}, {os.cpu_count()} cores.",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
    ]
    for row in (_HEADINGS, *(_row(outcome) for outcome in outcomes)):
        lines += [f"   {'* -' if not number else '  -'} {value}" for number, value in enumerate(row)]
        lines += ["     -"] * (_COLUMNS - len(row))
    return "\n".join([*lines, "", *(f"* {note}" for note in notes(outcomes)), ""])


def notes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Why tests were skipped, lack something, or broke off: each reason with the cells that it holds for."""
    cells: dict[str, list[str]] = {}
    for outcome in outcomes:
        for counts in (outcome.contracts, outcome.job):
            for reason in counts.reasons if counts else ():
                cells.setdefault(reason, []).append(outcome.cell.name)
    for reason, names in cells.items():
        yield f"{', '.join(dict.fromkeys(names))}: {reason}"


def _row(outcome: Outcome) -> tuple[str, ...]:
    cell = outcome.cell
    versions = (cell.name, cell.kafka, cell.confluent_kafka, cell.python)
    reason = outcome.reason or cell.reason
    return (*versions, f"not run: {reason}") if reason else (*versions, _shown(outcome.contracts), _shown(outcome.job))


def _shown(counts: Counts | None) -> str:
    return "-" if counts is None else str(counts)
