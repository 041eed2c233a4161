# SPDX-License-Identifier: Apache-2.0
"""What the tests said, as results by suite."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import subunit
import testtools
from tempest_suites import SUITES, Suite, suite_of

PASSED, RACED, FAILED, SKIPPED = "passed", "raced", "failed", "skipped"
_STATUSES = {"success": PASSED, "uxsuccess": FAILED, "skip": SKIPPED, "xfail": PASSED}
_SHOWN_LINES = 12  # of a failure


@dataclass(frozen=True, slots=True)
class TestResult:
    """``status``: ``raced`` where it failed and is listed as a race. ``detail``: why it was skipped, or raced; the end
    of what it said when it failed; of one that passed, what it measured, or why it was run twice."""

    test: str
    status: str
    detail: str = ""


@dataclass(slots=True)
class SuiteResult:
    """``shipped``: how many tests the plugin has in it. A suite that was not run has ``ran`` false."""

    name: str
    shipped: int
    ran: bool
    results: list[TestResult] = field(default_factory=list)

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results)

    @property
    def missing(self) -> int:
        """How many of its tests nobody heard of, though it ran."""
        return max(0, self.shipped - len(self.results)) if self.ran else 0

    @property
    def whole(self) -> bool:
        """Whether every test passed, or lost a race that is listed; none was skipped."""
        return self.ran and self.count(PASSED) + self.count(RACED) == self.shipped


def read(stream: IO[bytes], ended: Callable[[TestResult], None]) -> None:
    """Give each test of a subunit stream to ``ended``, when it has ended."""

    def test_ended(test: Any) -> None:
        if test["id"] != "stdout" and test["status"] != "exists":
            ended(_result(test))

    result = testtools.StreamToDict(test_ended)
    result.startTestRun()
    subunit.ByteStreamToStreamResult(stream, non_subunit_name="stdout").run(result)
    result.stopTestRun()


def by_suite(shipped: Iterable[str], ran: Sequence[Suite], results: Iterable[TestResult]) -> list[SuiteResult]:
    """``shipped``: the ids of all tests of the plugins that ran; ``ran``: the suites that were run. Of a plugin that
    did not run nothing is known."""
    plugins = {suite.plugin for suite in ran}
    found = {suite.name: SuiteResult(suite.name, 0, suite in ran) for suite in SUITES if suite.plugin in plugins}
    for test in shipped:
        suite = suite_of(test)
        if suite is None:
            raise ValueError(f"{test} belongs to no suite: name its module in tempest_suites.py")
        found[suite.name].shipped += 1
    for result in results:
        suite = suite_of(result.test)
        if suite is not None:
            found[suite.name].results.append(result)
    return list(found.values())


def write(stream: IO[bytes], wanted: Iterable[str], results: Iterable[TestResult]) -> None:
    """The results as a stream of subunit. Of what is ``wanted``, that nobody heard of has failed."""
    heard = list(results)
    silent = set(wanted) - {result.test for result in heard}
    heard += [TestResult(test, FAILED, "nobody heard of it: the run broke off") for test in sorted(silent)]
    written = subunit.StreamResultToBytes(stream)
    statuses = {PASSED: "success", RACED: "xfail", SKIPPED: "skip", FAILED: "fail"}
    for result in heard:
        if result.detail and result.status != PASSED:
            name = "reason" if result.status == SKIPPED else "traceback"
            detail = {"file_bytes": result.detail.encode(), "mime_type": "text/plain; charset=utf8"}
            written.status(test_id=result.test, file_name=name, eof=True, **detail)
        written.status(test_id=result.test, test_status=statuses[result.status])


def _result(test: dict[str, Any]) -> TestResult:
    status, details = _STATUSES.get(test["status"], FAILED), test["details"]
    if status == SKIPPED:
        reason = details.get("reason")
        return TestResult(test["id"], status, reason.as_text().strip() if reason else "no reason given")
    if status == PASSED:
        measured = details.get("measured")
        return TestResult(test["id"], status, measured.as_text().strip() if measured else "")
    said = details.get("traceback") or next(iter(details.values()), None)
    lines = said.as_text().strip().splitlines() if said else ["no traceback"]
    return TestResult(test["id"], status, "\n".join(lines[-_SHOWN_LINES:]))
