# SPDX-License-Identifier: Apache-2.0
"""A run of tempest, in its own environment, with a home of its own."""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tempest_results import FAILED, TestResult, read

from monasca_common.quickstart.services import ServiceFailed

_TOLD_EVERY = 10  # tests

Say = Callable[[str], None]


class TempestRun:
    """Tempest in its environment, with a folder, which is its home, and its configuration.

    ``package``: the ids of the plugin's tests begin with it.
    """

    def __init__(self, python: Path, folder: Path, configuration: str, say: Say, *, package: str) -> None:
        self._say = say
        self._package = package
        self._program = str(python.with_name("tempest"))
        path = f"{python.parent}:{os.environ.get('PATH', '')}"
        self._environ = {**os.environ, "HOME": str(folder), "PYTHON": "python", "PATH": path}  # stestr starts PYTHON
        folder.mkdir(exist_ok=True)
        self._folder = folder / "tempest"
        self._log = folder / "tempest.log"
        self._call("init", str(self._folder), cwd=folder)
        (self._folder / "etc" / "tempest.conf").write_text(configuration)

    def shipped(self) -> list[str]:
        """The ids of all tests that the plugin ships."""
        regex = f"^{re.escape(self._package)}"
        lines = self._call("run", "--list-tests", "--regex", regex, cwd=self._folder).splitlines()
        return [line for line in lines if line.startswith(self._package)]

    def run(self, tests: Iterable[str], *, concurrency: int, timeout: float) -> list[TestResult]:
        """The results of the tests of these ids. ``timeout``: in seconds; what runs then is ended."""
        results: list[TestResult] = []
        began = time.monotonic()

        def ended(result: TestResult) -> None:
            results.append(result)
            if result.status == FAILED:
                self._say(f"FAILED: {result.test}\n{result.detail}")
            if len(results) % _TOLD_EVERY == 0:
                failed = sum(each.status == FAILED for each in results)
                self._say(f"  {len(results)} tests, {failed} failed, {time.monotonic() - began:.0f} s")

        listed = self._folder / "tests.txt"
        listed.write_text("\n".join(tests) + "\n")
        command = [self._program, "run", "--subunit", "--concurrency", str(concurrency), "--load-list", str(listed)]
        self._say("running the tests")
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._environ, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        timer = threading.Timer(timeout, _end, [process])
        timer.start()
        try:
            assert process.stdout is not None
            with process.stdout:
                read(process.stdout, ended)
        finally:
            timer.cancel()
            _end(process)
            process.wait()
        return results

    def _call(self, *words: str, cwd: Path) -> str:
        done = subprocess.run(
            [self._program, *words], cwd=cwd, env=self._environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ServiceFailed(f"tempest {' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return done.stdout


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill it with the test processes that it started: they are of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
