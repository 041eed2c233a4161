# SPDX-License-Identifier: Apache-2.0
"""Count the tests in the result streams of a run, and say so in one line: ``N passed, N failed, N skipped``.

A folder holds ``<suite>.subunit``, ``<suite>.status`` (the exit status of stestr) and ``<suite>.stderr`` of each
suite. Before that line stands once more what failed, and why: thousands of lines above it nobody finds it.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import subunit
import testtools

_PASSED = ("success", "xfail")
_SKIPPED = ("skip",)
_SHOWN_LINES = 60  # of a traceback, and of what a suite that failed wrote to its stderr


def main() -> int:
    """0 when nothing failed; where CI is true, skipping is failing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path)
    parser.add_argument("--passed", type=int, default=0, help="checks that passed beside the tests")
    parser.add_argument("--failed", type=int, default=0, help="checks that failed beside the tests")
    arguments = parser.parse_args()
    total = Counter(passed=arguments.passed, failed=arguments.failed)
    for stream in sorted(arguments.results.glob("*.subunit")):
        total += count(stream, int(stream.with_suffix(".status").read_text()))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    skips_fail = os.environ.get("CI") == "true"
    return 1 if total["failed"] or (skips_fail and total["skipped"]) else 0


def count(stream: Path, status: int) -> Counter[str]:
    """The tests of one suite by outcome. A run that broke off, or ran nothing, is one failure more."""
    outcomes: Counter[str] = Counter()

    def note(test: Any) -> None:
        if test["status"] in _PASSED:
            outcomes["passed"] += 1
        elif test["status"] in _SKIPPED:
            outcomes["skipped"] += 1
        elif test["status"] != "exists":
            outcomes["failed"] += 1
            print(f"FAILED: {test['id']} ({test['status']})", *_tracebacks(test), sep="\n", file=sys.stderr)

    if status != 0:
        said = _end(stream.with_suffix(".stderr").read_text(errors="replace"))
        print(f"The {stream.stem} tests wrote to stderr:", said, sep="\n", file=sys.stderr)
    result = testtools.StreamToDict(note)
    result.startTestRun()
    with stream.open("rb") as source:
        subunit.ByteStreamToStreamResult(source, non_subunit_name="stdout").run(result)
    result.stopTestRun()
    if (status != 0 and not outcomes["failed"]) or not outcomes:
        print(f"FAILED: the {stream.stem} tests did not run to their end (exit status {status})", file=sys.stderr)
        outcomes["failed"] += 1
    return outcomes


def _tracebacks(test: Any) -> list[str]:
    return [_end(detail.as_text()) for name, detail in test["details"].items() if name.startswith("traceback")]


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])


if __name__ == "__main__":
    sys.exit(main())
