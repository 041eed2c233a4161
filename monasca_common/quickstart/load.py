# SPDX-License-Identifier: Apache-2.0
"""A process that uses a core on request, to generate load for an alarm."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from monasca_common.quickstart.services import ServiceFailed

PROCESS_NAME = "quickstart-load"  # the kernel keeps 15 characters
MOST_SECONDS = 60.0
_START_SECONDS = 60.0
_WORK, _REST = b"w", b"r"


class OwnLoad:
    """A process that is idle, or uses one core for at most `MOST_SECONDS`. It ends with this process."""

    def __init__(self) -> None:
        import psutil  # an extra

        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._measured = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _START_SECONDS)[0] or not self._process.stdout.read(1):
            self.__exit__(None, None, None)
            raise ServiceFailed(f"the process that generates load did not start within {_START_SECONDS:.0f} s")
        self.percent()  # the first answer has nothing to compare with
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.kill()

    def work(self) -> None:
        self._tell(_WORK)

    def rest(self) -> None:
        self._tell(_REST)

    def percent(self) -> float:
        """Return the percentage of one core used since the last call."""
        return float(self._measured.cpu_percent())

    def _tell(self, what: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(what)
        self._process.stdin.flush()


def _main() -> None:
    Path("/proc/self/comm").write_text(PROCESS_NAME)
    os.write(1, _REST)
    ends_at = 0.0
    while True:
        works = time.monotonic() < ends_at
        if select.select([0], [], [], 0 if works else None)[0]:
            request = os.read(0, 16)
            if not request:
                return
            ends_at = time.monotonic() + MOST_SECONDS if request.endswith(_WORK) else 0.0
        elif works:
            sum(range(100_000))


if __name__ == "__main__":
    _main()
