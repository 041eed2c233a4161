# SPDX-License-Identifier: Apache-2.0
"""One process of tests: it runs what `run_suite.py` deals out, class by class, and keeps what the tests share.

Arguments: this process's number, the file for its subunit stream, and the file descriptor for its answers.
On standard input: one line a unit, ``{"class": "package.module.Class", "ids": [...]}``. Answers, one line each:
``{"began": id}``, ``{"ended": id, "status": ...}`` and ``{"done": class, "seconds": ...}``. It ends with its standard
input. With ``--list FOLDER`` it prints the ids of all tests as one line of JSON.
"""

import importlib
import json
import os
import signal
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import testtools
from subunit import StreamResultToBytes
from subunit.test_results import AutoTimingTestResultDecorator

_WORDS = {"success": "ok", "fail": "FAILED", "skip": "SKIPPED", "xfail": "ok (fails as expected)"}


def main() -> None:
    sys.path[0] = os.getcwd()  # not by the environment, which the tests' own programs inherit
    if sys.argv[1] == "--list":
        print(json.dumps(ids_in(sys.argv[2])))
        return
    number, stream, answers = sys.argv[1], Path(sys.argv[2]), os.fdopen(int(sys.argv[3]), "w", buffering=1)
    os.set_inheritable(answers.fileno(), False)
    # Who runs the suite in the background of a script passes on that Ctrl-C is ignored; tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    units = os.fdopen(os.dup(0), "r")
    with open(os.devnull) as nothing:  # a program that a test starts must not read the units
        os.dup2(nothing.fileno(), 0)
    # Unbuffered: what was reported stays, even if the process dies in the next test.
    with stream.open("ab", buffering=0) as raw:
        worker = _Worker(number, raw, answers)
        for line in units:
            worker.run(json.loads(line))


class _Worker:
    def __init__(self, number: str, raw: Any, answers: Any) -> None:
        self._number = number
        self._answers = answers
        self._stream = testtools.CopyStreamResult([StreamResultToBytes(raw), testtools.StreamToDict(self._ended)])

    def run(self, unit: dict[str, Any]) -> None:
        began = time.monotonic()
        wanted = set(unit["ids"])
        suite = unittest.TestSuite(self._watched(test) for test in tests_of(unit["class"]) if test.id() in wanted)
        result = AutoTimingTestResultDecorator(testtools.ExtendedToStreamDecorator(self._stream))
        result.startTestRun()
        try:
            suite.run(result)
        finally:
            result.stopTestRun()
        self._answer(done=unit["class"], seconds=time.monotonic() - began)

    def _watched(self, test: Any) -> Any:
        run = test.run

        def watched(result: Any = None) -> Any:
            self._answer(began=test.id())
            return run(result)

        test.run = watched
        return test

    def _ended(self, test: Any) -> None:
        began, ended = test["timestamps"]
        took = (ended - began).total_seconds() if began and ended else 0.0
        word = _WORDS.get(test["status"], test["status"])
        print(f"{{{self._number}}} {test['id']} [{took:.3f}s] ... {word}", flush=True)
        self._answer(ended=test["id"], status=test["status"])

    def _answer(self, **facts: Any) -> None:
        self._answers.write(json.dumps(facts) + "\n")


def ids_in(folder: str) -> list[str]:
    """Of all tests in a folder; a module that cannot be imported is the end."""
    loader = unittest.TestLoader()
    ids = dict.fromkeys(test.id() for test in flat(loader.discover(folder, top_level_dir=os.getcwd())))
    if loader.errors:
        raise SystemExit("\n".join(map(str, loader.errors)))
    return list(ids)


def tests_of(class_name: str) -> Iterator[unittest.TestCase]:
    """The tests of a class; a module that cannot be imported raises, which ends the process."""
    module = importlib.import_module(class_name.rpartition(".")[0])
    for test in flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
        if test.id().rpartition(".")[0] == class_name:
            yield test


def flat(suite: Any) -> Iterator[Any]:
    """The tests in suites of suites."""
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from flat(each)
        else:
            yield each


if __name__ == "__main__":
    main()
