# SPDX-License-Identifier: Apache-2.0
"""A run of tempest in its own environment and home directory."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from verdict import Result, read

from monasca_common.quickstart.services import ServiceFailed

_EXCLUDED = Path(__file__).with_name("excluded.txt").resolve()
_STDERR = 2  # the file descriptor, because the sys.stderr of a test has none


class TempestRun:
    """Runs tempest in its environment, with its configuration and a folder as its home directory."""

    def __init__(self, python: Path, folder: Path, configuration: str) -> None:
        self._programs = python.parent
        path = f"{self._programs}:{os.environ.get('PATH', '')}"
        self._environ = {**os.environ, "HOME": str(folder), "PYTHON": "python", "PATH": path}  # stestr starts PYTHON
        self._folder = folder / "tempest"
        self.stream = folder / "tempest.subunit"
        folder.mkdir(exist_ok=True)
        self._output("tempest", "init", str(self._folder), cwd=folder)
        (self._folder / "etc" / "tempest.conf").write_text(configuration)

    def listed(self, package: str) -> list[str]:
        """Return the ids of the plugin's tests in this package, without the tests in excluded.txt."""
        regex = ("--regex", f"^{re.escape(package)}")
        lines = self._output("tempest", "run", "--list-tests", *regex, "--exclude-list", str(_EXCLUDED))
        return [line for line in lines.decode().splitlines() if line.startswith(package)]

    def results(self, tests: Iterable[str], *, concurrency: int, timeout: float) -> dict[str, Result]:
        """Return the results of the tests with these ids, and write them to `stream`; tempest shows them on stderr.

        After ``timeout`` seconds, tempest is stopped and no test has a result.
        """
        listed = self._folder / "tests.txt"
        listed.write_text("\n".join(tests) + "\n")
        words = ["run", "--concurrency", str(concurrency), "--load-list", str(listed)]
        with self.stream.with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._programs / "tempest"), *words],
                cwd=self._folder,
                env=self._environ,
                stdout=_STDERR,
                stderr=log,
                start_new_session=True,
            )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            print(f"tempest did not end within {timeout:g} s", file=sys.stderr)
            self.stream.write_bytes(b"")
        else:
            self.stream.write_bytes(self._output("stestr", "last", "--subunit"))
        finally:
            with contextlib.suppress(ProcessLookupError):  # also ends the processes of its session
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with self.stream.open("rb") as stream:
            return read(stream)

    def _output(self, program: str, *words: str, cwd: Path | None = None) -> bytes:
        command = [str(self._programs / program), *words]
        done = subprocess.run(command, cwd=cwd or self._folder, env=self._environ, capture_output=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"{program} {' '.join(words)}: {done.stderr.decode().strip()[-2000:]}")
        return done.stdout
