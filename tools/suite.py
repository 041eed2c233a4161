# SPDX-License-Identifier: Apache-2.0
"""Run the tests in a folder with stestr, then repeat each class in which a test failed.

RESULTS receives the tests (``NAME.1.ids``) and the results (``NAME.1.subunit``) of the first attempt, those of the
second attempt, and ``NAME.stderr``. ``verdict.py`` evaluates them, so the exit status is always 0. The tests are passed
by id (``--load-list``), and each needs a result. ``stestr run --failing`` is not used, because it would return 0
without repeating the tests of a failed worker or of a class whose set-up failed.
"""

import argparse
import contextlib
import fcntl
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import subunit
from verdict import Result, Suite, read

from monasca_common.tests.periodic import reason_of

_CLASS_SECONDS = Path(__file__).with_name("class_seconds.json")
_KILL_AFTER_SECONDS = 30
_PROCESS_SHARE = 0.6  # of the time-out; a hanging process of the first attempt then leaves time for a second one
_TERMINATED = 143
_SHOWN = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", help="the folder of the tests, such as monasca_common/tests/unit")
    parser.add_argument("results", type=Path, help="the folder for the results")
    parser.add_argument("name", help="the name of the suite")
    parser.add_argument("--all", action="store_true", help="also run the periodic classes")
    parser.add_argument("--limit", type=float, default=1800.0, help="time-out of both attempts together, in seconds")
    parser.add_argument("--worker-file", type=Path, help="file that distributes the tests over processes")
    parser.add_argument("--concurrency", default="0", metavar="N", help="number of processes (default: one per core)")
    parser.add_argument("--test", default="", metavar="REGEX", help="run only the tests whose ids match")
    parser.add_argument("--python", type=Path, help="the interpreter that can import the tests (default: this one)")
    parser.add_argument("--top-dir", default="./", help="the folder from which the tests are imported (default: ./)")
    arguments = parser.parse_args()
    # A background job of a script ignores Ctrl-C; the tests would inherit this, but they send Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # `run` then ends the processes that it started
    reasons: dict[str, str | None] = {}
    if not arguments.python:
        with ProcessPoolExecutor(1) as importer:  # in a separate process, because the imported tests need memory
            reasons = importer.submit(listed, arguments.folder).result()
    with repository(arguments.name) as path:
        stestr = Stestr(path, arguments)
        stestr.seed(reasons)
        if arguments.python:
            reasons = dict.fromkeys(stestr.ids())
        ids = [test for test, reason in reasons.items() if arguments.all or reason is None]
        # stestr uses the file only if the concurrency is not 1, which is the default on one core.
        shared = ["--worker-file", str(arguments.worker_file)] if arguments.worker_file else []
        stestr.run(1, filter(re.compile(arguments.test).search, ids), "--concurrency", arguments.concurrency, *shared)
        suite = Suite.load(arguments.results, arguments.name)
        if repeated := suite.repeated():
            print(f"\n== {arguments.name} tests: second attempt of the classes in which a test failed")
            stestr.run(2, repeated, "--serial")
        print_slowest(suite)


def listed(folder: str) -> dict[str, str | None]:
    """Return the ids of the tests in a folder, each with the reason why it is periodic, or ``None``."""
    loader = unittest.TestLoader()
    tests = list(_flat(loader.discover(folder, top_level_dir=os.getcwd())))
    if loader.errors:
        raise ImportError("\n".join(map(str, loader.errors)))
    return {test.id(): reason_of(type(test), test.id()) for test in tests}


def _flat(suite: Any) -> Iterator[Any]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


@contextlib.contextmanager
def repository(name: str) -> Iterator[Path]:
    """Yield the folder of a suite's stestr repository in the user's cache; only one run uses it at a time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "monasca-common" / "stestr" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


class Stestr:
    """Runs stestr with one repository, whose recorded times distribute the classes over the processes."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder = folder
        self._arguments = arguments
        self._deadline = time.monotonic() + arguments.limit
        # stestr starts the workers in a shell, with PYTHON or with the unquoted path of this interpreter.
        python = arguments.python or Path(sys.executable)
        path = f"{python.parent}:{os.environ.get('PATH', os.defpath)}"
        seconds = {"MONASCA_COMMON_PROCESS_SECONDS": str(_PROCESS_SHARE * arguments.limit)}
        self._environ = {**os.environ, **seconds, "PYTHON": "python", "PATH": path}
        self._command = [sys.executable, "-m", "stestr", "--parallel-class", "--repo-url", str(folder)]
        self._command += ["--test-path", arguments.folder, "--top-dir", arguments.top_dir]

    def ids(self) -> list[str]:
        """Return the ids of the tests in the folder."""
        command = [*self._command, "list"]
        listed = subprocess.run(command, env=self._environ, stdout=subprocess.PIPE, text=True, check=False)
        if listed.returncode:
            raise ImportError(listed.stdout)
        return listed.stdout.split()

    def seed(self, ids: Iterable[str]) -> None:
        """Load the committed times into a new repository. Remove all results of an existing repository, but keep its
        times."""
        stored = self._folder / ".stestr"
        try:
            if stored.exists():
                self._call("load")  # an empty run: it fails if the stored times are damaged
                self._call("history", "remove", "all")
        except subprocess.CalledProcessError:
            print(f"{stored} is damaged and is replaced with the committed times", file=sys.stderr)
            shutil.rmtree(stored)
        if not stored.exists():
            self._call("load", "--force-init", stream=committed_times(ids))

    def _call(self, *words: str, stream: bytes = b"") -> None:
        subprocess.run([*self._command, *words], input=stream, stdout=subprocess.DEVNULL, check=True)

    def run(self, number: int, ids: Iterable[str], *options: str) -> None:
        """Run an attempt, and print a line when a test ends."""
        results, name = self._arguments.results, self._arguments.name
        load_list, stream = results / f"{name}.{number}.ids", results / f"{name}.{number}.subunit"
        load_list.write_text("".join(f"{test}\n" for test in ids))
        # `timeout` signals its process group: stestr, its workers, and the processes that they started.
        seconds = max(1.0, self._deadline - time.monotonic())
        ended = ["timeout", f"--kill-after={_KILL_AFTER_SECONDS}", f"{seconds:.1f}"]
        command = [*ended, *self._command, "run", "--subunit", "--load-list", str(load_list), *options]
        with (results / f"{name}.stderr").open("ab") as stderr:
            run = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=self._environ
            )
            copy = subprocess.Popen(["tee", str(stream)], stdin=run.stdout, stdout=subprocess.PIPE)
        try:
            assert copy.stdout is not None
            read(copy.stdout, _print)
        finally:
            run.terminate()
            run.wait()
            copy.wait()


def committed_times(ids: Iterable[str]) -> bytes:
    """Return the times in ``class_seconds.json`` as a subunit stream: each test has a share of its class's time."""
    seconds: dict[str, float] = json.loads(_CLASS_SECONDS.read_text())
    classes = defaultdict(list)
    for test in ids:
        classes[test.rpartition(".")[0]].append(test)
    raw = io.BytesIO()
    stream, began = subunit.StreamResultToBytes(raw), datetime(2026, 1, 1, tzinfo=UTC)
    for name in classes.keys() & seconds.keys():
        ended = began + timedelta(seconds=seconds[name] / len(classes[name]))
        for test in classes[name]:
            stream.status(test_id=test, test_status="inprogress", timestamp=began)
            stream.status(test_id=test, test_status="success", timestamp=ended)
    return raw.getvalue()


def _print(result: Result) -> None:
    word = {"passed": "ok", "skipped": "SKIPPED"}.get(result.outcome, "FAILED")
    print(f"{result.id} [{result.seconds:.3f}s] ... {word}", flush=True)


def print_slowest(suite: Suite) -> None:
    took: defaultdict[str, float] = defaultdict(float)
    for result in suite.attempts[0].values():
        took[result.class_name] += result.seconds
    print(f"\nThe slowest classes of the {suite.name} tests:")
    for name, seconds in sorted(took.items(), key=lambda item: -item[1])[:_SHOWN]:
        print(f"{seconds:8.1f} s  {name}")


if __name__ == "__main__":
    main()
