# SPDX-License-Identifier: Apache-2.0
"""Count the tests in the result streams of a run, and say so in one line: ``N passed, N failed, N skipped``.

A folder holds of each suite ``<suite>.<process>.subunit``, ``<suite>.status`` (0; 1 when tests failed; more when the
run broke off) and ``<suite>.stderr``. Before the line stands once more what failed, and why: nobody finds it thousands
of lines above.

A test that failed is run once more by itself (``--repeatable`` prints those); ``<suite>-again`` is the record of
that. What then passed counts as passed and is listed as flaky with its first traceback: at most two in a run, of which
one may be a claim; the other one failed in its set-up, because something did not start, or by its time limit. What
tells of lost or doubled messages is never forgiven.
"""

import argparse
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import subunit
import testtools

_PASSED = ("success", "xfail")
_SKIPPED = ("skip",)
_TESTS_FAILED = 1  # a suite's exit status
_AGAIN = "-again"
_MOST_FLAKY = 2
_MOST_CLAIMS = 1  # of them
_MOST_REPEATED = 10  # beyond it the machine is at fault, or the change
_SHOWN_LINES = 60  # of a traceback, and of what a suite that failed wrote to its stderr

_OF_MESSAGES = re.compile(r"\b\d+ (?:lost|duplicate|phantom) \[|^(?:\w+\.)*UndeliveredError\b", re.MULTILINE)
_CLAIMS = re.compile(r"^(?:\w+\.)*(?:AssertionError|MismatchError|UndeliveredError)\b", re.MULTILINE)
_NOT_STARTED = re.compile(
    r"^(?:\w+\.)*(?:TimeoutException|DevBrokerError|BrokerFailed|PortTaken|DatabaseFailed|JarsUnavailable"
    r"|SparkUnavailable)\b",
    re.MULTILINE,
)
_IN_SET_UP = re.compile(r"^  File \".*\", line \d+, in (?:setUp|setUpClass|_setUp)$", re.MULTILINE)
_CLASS_SET_UP = re.compile(r"^setUpClass \((?P<name>[\w.]+)\)$")


def main() -> int:
    """0 when nothing failed; where CI is true, skipping is failing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path)
    parser.add_argument("--passed", type=int, default=0, help="checks that passed beside the tests")
    parser.add_argument("--failed", type=int, default=0, help="checks that failed beside the tests")
    parser.add_argument("--repeatable", metavar="SUITE", help="print the tests of this suite to run once more, and end")
    arguments = parser.parse_args()
    if arguments.repeatable:
        print("\n".join(repeatable(Suite.read(arguments.results / f"{arguments.repeatable}.status"))))
        return 0
    suites = {path.stem: Suite.read(path) for path in sorted(arguments.results.glob("*.status"))}
    forgiven = [each for name, suite in suites.items() for each in suite.forgive(suites.get(name + _AGAIN))]
    for name, suite in suites.items():
        suite.complain(again=name.endswith(_AGAIN))
    total = Counter(passed=arguments.passed, failed=arguments.failed)
    for name, suite in suites.items():
        total += suite.count(again=name.endswith(_AGAIN))
    claims = sum(each.claims for each in forgiven)
    if len(forgiven) > _MOST_FLAKY or claims > _MOST_CLAIMS:
        print(
            f"FAILED: {len(forgiven)} tests passed only the second time, {claims} of them after a failed claim; "
            f"at most {_MOST_FLAKY} may, and {_MOST_CLAIMS}",
            file=sys.stderr,
        )
        total["failed"] += len(forgiven)
        total["passed"] -= sum(each.passed_again for each in forgiven)
    for each in forgiven:
        print(f"flaky: {each.id}", each.traceback, sep="\n")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    skips_fail = os.environ.get("CI") == "true"
    return 1 if total["failed"] or (skips_fail and total["skipped"]) else 0


@dataclass(slots=True)
class Failure:
    """A test, or the set-up of a class, that did not pass. ``traceback``: all that it has, one after the other."""

    id: str
    status: str
    tracebacks: list[str]
    passed_again: int = 0

    @property
    def target(self) -> str:
        """What to run once more: the test, or the whole class that could not start."""
        found = _CLASS_SET_UP.match(self.id)
        return found["name"] if found else self.id

    @property
    def traceback(self) -> str:
        return "\n".join(_end(each) for each in self.tracebacks)

    @property
    def forgivable(self) -> bool:
        """Whether it says why it failed, and that is not what became of messages."""
        return bool(self.tracebacks) and not any(_OF_MESSAGES.search(each) for each in self.tracebacks)

    @property
    def claims(self) -> bool:
        """Whether it failed otherwise than in set-up, start or by its time limit."""
        return not all(_machines_fault(each) for each in self.tracebacks)


def _machines_fault(traceback: str) -> bool:
    if _CLAIMS.search(traceback):
        return False
    return bool(_NOT_STARTED.search(traceback) or _IN_SET_UP.search(traceback))


@dataclass(slots=True)
class Suite:
    name: str
    status: int
    stderr: str
    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    forgiven: list[Failure] = field(default_factory=list)

    @classmethod
    def read(cls, status_file: Path) -> "Suite":
        suite = cls(
            status_file.stem,
            int(status_file.read_text()),
            status_file.with_suffix(".stderr").read_text(errors="replace"),
        )
        for stream in sorted(status_file.parent.glob(f"{suite.name}.*.subunit")):
            result = testtools.StreamToDict(suite._note)
            result.startTestRun()
            with stream.open("rb") as source:
                subunit.ByteStreamToStreamResult(source, non_subunit_name="stdout").run(result)
            result.stopTestRun()
        return suite

    def _note(self, test: Any) -> None:
        if test["status"] in _PASSED:
            self.passed.append(test["id"])
        elif test["status"] in _SKIPPED:
            self.skipped.append(test["id"])
        elif test["status"] != "exists":
            traces = [detail.as_text() for name, detail in test["details"].items() if name.startswith("traceback")]
            # A test that its process died in has no end in that process's stream, and the reason in another one.
            known = next((each for each in self.failures if each.id == test["id"]), None)
            if known is None:
                self.failures.append(Failure(test["id"], test["status"], traces))
            else:
                known.tracebacks += traces

    @property
    def broke_off(self) -> bool:
        """Whether it ended otherwise than by its tests' doing, or ran nothing."""
        if self.status == _TESTS_FAILED:
            return not (self.failures or self.forgiven)
        return self.status != 0 or not (self.passed or self.skipped or self.failures)

    def forgive(self, again: "Suite | None") -> list[Failure]:
        """Take out what passed when it was run once more, and return it."""
        if again is None:
            return []
        for failure in self.failures:
            failure.passed_again = len([each for each in again.passed if _belongs(each, failure.target)])
            bad = [each for each in again.failures if _belongs(each.target, failure.target)]
            if failure.forgivable and failure.passed_again and not bad:
                self.forgiven.append(failure)
        self.failures = [each for each in self.failures if each not in self.forgiven]
        return self.forgiven

    def complain(self, *, again: bool) -> None:
        for failure in self.failures:
            kind = "FAILED AGAIN" if again else "FAILED"
            print(f"{kind}: {failure.id} ({failure.status})", failure.traceback, sep="\n", file=sys.stderr)
        if self.failures or self.broke_off:
            print(f"The {self.name} tests wrote to stderr:", _end(self.stderr), sep="\n", file=sys.stderr)
        if self.broke_off:
            print(f"FAILED: the {self.name} tests did not run to their end ({self.status})", file=sys.stderr)

    def count(self, *, again: bool) -> Counter[str]:
        """By outcome. A run that broke off, or ran nothing, is one failure more; what failed again is counted once."""
        failed = 0 if again else len(self.failures)
        return Counter(passed=len(self.passed), failed=failed + self.broke_off, skipped=len(self.skipped))


def repeatable(suite: Suite) -> list[str]:
    """The tests and classes to run once more; none when there are too many of them."""
    found = [failure.target for failure in suite.failures if failure.forgivable]
    return found if len(found) <= _MOST_REPEATED else []


def _belongs(test_id: str, target: str) -> bool:
    return test_id == target or test_id.startswith(f"{target}.")


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])


if __name__ == "__main__":
    sys.exit(main())
