# SPDX-License-Identifier: Apache-2.0
"""The results as a table: for a terminal, and for the documentation."""

from collections.abc import Iterator, Sequence

from tempest_results import FAILED, PASSED, RACED, SKIPPED, SuiteResult

_HEADINGS = ("Suite", "Tests", "Passed", "Raced", "Failed", "Skipped")


def text(suites: Sequence[SuiteResult]) -> str:
    """Columns of equal width, a sum of what ran, and below it what failed and why tests were skipped."""
    ran = [suite for suite in suites if suite.ran]
    rows = [_HEADINGS, *map(_row, suites), _total(ran)]
    # Why a suite did not run stands for the last columns, and widens none.
    whole = [row for row in rows if row[-1]]
    widths = [max(len(row[column]) for row in (whole if column == 2 else rows)) for column in range(len(_HEADINGS))]
    lines = ["  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"* {note}" for note in notes(ran))])


def fragment(suites: Sequence[SuiteResult], versions: str) -> str:
    """A list-table of reStructuredText, with the same notes below it. ``versions``: of what ran."""
    lines = [
        ".. Written by tools/tempest_tests --rst; do not edit.",
        "",
        f"{versions}.",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
    ]
    ran = [suite for suite in suites if suite.ran]
    for row in (_HEADINGS, *map(_row, suites), _total(ran)):
        lines += [f"   {'* -' if not number else '  -'} {value}".rstrip() for number, value in enumerate(row)]
    return "\n".join([*lines, "", *(f"* {note}" for note in notes(ran)), ""])


def notes(suites: Sequence[SuiteResult]) -> Iterator[str]:
    """What failed, each with its last line; what raced, or might have; what nobody heard of; why tests were skipped,
    each reason once."""
    reasons: dict[str, int] = {}
    for suite in suites:
        for result in suite.results:
            if result.status == FAILED:
                yield f"{suite.name} failed: {result.test}: {result.detail.splitlines()[-1]}"
            elif result.status == RACED:
                yield f"{suite.name} raced: {result.test}: {result.detail}"
            elif result.status == PASSED and result.detail:
                yield f"{suite.name}: {result.test} {result.detail}"
            elif result.status == SKIPPED:
                reason = f"{suite.name} skipped: {result.detail}"
                reasons[reason] = reasons.get(reason, 0) + 1
        if suite.missing:
            yield f"{suite.name}: {_tests(suite.missing)} did not run"
    for reason, times in reasons.items():
        yield f"{reason} ({_tests(times)})"


def _tests(count: int) -> str:
    return f"{count} test" if count == 1 else f"{count} tests"


def _row(suite: SuiteResult) -> tuple[str, ...]:
    begin = (suite.name, str(suite.shipped))
    if suite.ran:
        return (*begin, *_counts([suite]))
    return (*begin, "not run", "", "", "")


def _total(ran: Sequence[SuiteResult]) -> tuple[str, ...]:
    return ("all that ran", str(sum(suite.shipped for suite in ran)), *_counts(ran))


def _counts(suites: Sequence[SuiteResult]) -> tuple[str, ...]:
    return tuple(str(sum(suite.count(status) for suite in suites)) for status in (PASSED, RACED, FAILED, SKIPPED))
