# SPDX-License-Identifier: Apache-2.0
"""Evaluate the results of a test run, and print ``N passed, N failed, N skipped`` as the last line.

A folder contains two files per suite and attempt: ``NAME.1.ids`` lists the tests that need a result, and
``NAME.1.subunit`` has the results. The second attempt, if any, repeats each class in which a test failed.

- A test without a result, a test whose process exited, and a suite without tests have failed.
- Otherwise the last result of a test counts. A test that first failed and then passed is flaky: it is listed with its
  first traceback and counts as passed. A test that first failed and was then skipped has failed. More than two flaky
  tests fail the run.
- A test that finds lost or duplicated messages has failed, regardless of its other result: its traceback names the
  class ``LostOrDuplicated``.
"""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import subunit
import testtools

_ATTEMPTS = (1, 2)
_MOST_FLAKY = 2
_MOST_REPEATED = 10  # classes; if more classes fail, the cause is the machine or the change
_SHOWN_LINES = 60  # lines of a traceback, and of the stderr of a failed suite's processes
_NEVER_FLAKY = re.compile(r"^(?: *\| )?(?:\w+\.)*LostOrDuplicated\b", re.MULTILINE)  # "| ": in a group
_CLASS_LEVEL = re.compile(r"^\w+ \((?P<name>[\w.]+)\)$")  # setUpClass (package.module.Class)
_OUTCOMES = {"success": "passed", "xfail": "passed", "skip": "skipped"}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test or the error of a class's set-up, in one attempt."""

    id: str
    status: str
    traceback: str = ""
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        return _OUTCOMES.get(self.status, "failed")

    @property
    def final(self) -> bool:
        """Return whether this failure counts even if a second attempt succeeds."""
        return self.status == "inprogress" or bool(_NEVER_FLAKY.search(self.traceback))

    @property
    def class_name(self) -> str:
        found = _CLASS_LEVEL.match(self.id)
        return found["name"] if found else self.id.rpartition(".")[0]


def read(stream: IO[bytes], listener: Callable[[Result], None] = lambda result: None) -> dict[str, Result]:
    """Return the results in a subunit stream by id. A test that started but did not end has failed."""
    results: dict[str, Result] = {}

    def note(test: Any) -> None:
        if test["status"] == "exists":
            return
        texts = [detail.as_text() for name, detail in test["details"].items() if name.startswith("traceback")]
        began, ended = test["timestamps"]
        seconds = (ended - began).total_seconds() if began and ended else 0.0
        result = Result(test["id"], test["status"], "\n".join(texts), seconds)
        of_id = [result, *([results[result.id]] if result.id in results else [])]
        results[result.id] = max(of_id, key=lambda each: (each.final, each.outcome == "failed"))
        listener(result)

    collector = testtools.StreamToDict(note)
    collector.startTestRun()
    subunit.ByteStreamToStreamResult(stream, non_subunit_name="stdout").run(collector)
    collector.stopTestRun()
    return results


class Suite:
    """The tests of a folder with the results of one or two attempts."""

    def __init__(self, name: str, ids: Iterable[str], *attempts: dict[str, Result]) -> None:
        self.name = name
        self.attempts = attempts
        self.results: dict[str, list[Result]] = {test: [] for test in ids}
        for attempt in attempts:
            for test, result in attempt.items():
                self.results.setdefault(test, []).append(result)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Suite":
        listed, attempts = folder / f"{name}.1.ids", []
        for number in _ATTEMPTS:
            path = folder / f"{name}.{number}.subunit"
            if path.exists():
                with path.open("rb") as stream:
                    attempts.append(read(stream))
        return cls(name, listed.read_text().split() if listed.exists() else (), *attempts)

    def repeated(self) -> list[str]:
        """Return the tests of the second attempt: all tests of each class in which a test failed."""
        results = self.attempts[0].values() if self.attempts else ()
        failed = {result.class_name for result in results if result.outcome == "failed" and not result.final}
        listed = [test for test in self.results if not _CLASS_LEVEL.match(test) and self._class_name(test) in failed]
        return listed if len(failed) <= _MOST_REPEATED else []

    def outcome(self, test: str) -> str:
        """Return "passed", "failed", "skipped" or "flaky"."""
        results = self.results[test]
        if not results or any(result.final for result in results):
            return "failed"
        if all(result.outcome != "failed" for result in results):
            return results[-1].outcome
        return "flaky" if results[-1].outcome == "passed" or self._class_recovered(test) else "failed"

    def tracebacks(self, test: str) -> str:
        results = self.results[test]
        if not results:
            return "the test has no result"
        return "\n".join(_end(result.traceback or result.status) for result in results if result.outcome == "failed")

    def _class_recovered(self, test: str) -> bool:
        """Return whether only the first attempt had this error of a class's set-up, and the second attempt ran the
        class."""
        if not _CLASS_LEVEL.match(test) or len(self.attempts) < len(_ATTEMPTS):
            return False
        tests = [each for each in self.results if self._class_name(each) == self._class_name(test) and each != test]
        second = self.attempts[1]
        return test not in second and any(second[each].outcome == "passed" for each in tests if each in second)

    def _class_name(self, test: str) -> str:
        return Result(test, "").class_name


def judge(suites: Iterable[Suite], counts: Counter[str]) -> Counter[str]:
    """Return the counts of all suites, added to ``counts``, and print each failure and each flaky test."""
    flaky = []
    for suite in suites:
        if not suite.results:
            counts["failed"] += 1
            print(f"FAILED: the {suite.name} tests did not run", file=sys.stderr)
        for test in suite.results:
            outcome = suite.outcome(test)
            counts[outcome] += 1
            if outcome == "failed":
                print(f"FAILED: {test}", suite.tracebacks(test), sep="\n", file=sys.stderr)
            elif outcome == "flaky":
                flaky.append(f"flaky: {test}\n{suite.tracebacks(test)}")
    excess = len(flaky) > _MOST_FLAKY
    counts["failed" if excess else "passed"] += counts.pop("flaky", 0)
    for text in flaky:
        print(text)
    if excess:
        print(
            f"FAILED: {len(flaky)} flaky tests; at most {_MOST_FLAKY} tests may pass only when repeated",
            file=sys.stderr,
        )
    return counts


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])


def main() -> int:
    """Return 0 if no test failed. If CI is true, a skipped test is also a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path)
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    parser.add_argument("--passed", type=int, default=0, help="number of checks that passed")
    parser.add_argument("--failed", type=int, default=0, help="number of checks that failed")
    arguments = parser.parse_args()
    suites = [Suite.load(arguments.results, name) for name in arguments.suites]
    counts = judge(suites, Counter(passed=arguments.passed, failed=arguments.failed))
    for suite in suites:
        stderr = arguments.results / f"{suite.name}.stderr"
        if stderr.exists() and (not suite.results or any(suite.outcome(test) == "failed" for test in suite.results)):
            print(
                f"The {suite.name} tests wrote to stderr:",
                _end(stderr.read_text(errors="replace")),
                sep="\n",
                file=sys.stderr,
            )
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped", flush=True)
    skips_fail = os.environ.get("CI") == "true"
    return 1 if counts["failed"] or (skips_fail and counts["skipped"]) else 0


if __name__ == "__main__":
    sys.exit(main())
