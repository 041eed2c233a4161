# SPDX-License-Identifier: Apache-2.0
"""The parent's side of the process that owns the brokers (`supervisor_child`)."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monasca_common.devbroker.errors import DevBrokerError

_CHILD = Path(__file__).with_name("supervisor_child.py")
_CLOSE_SECONDS = 15.0


class Supervisor:
    """Starts processes that end with this one, even when this one is killed. Thread-safe.

    ``remove`` names folders that are removed when the last process has ended.
    """

    def __init__(self, *, remove: Sequence[str | Path] = ()) -> None:
        self._lock = threading.Lock()
        self._remove = tuple(remove)
        self._asked = 0
        # -I and -S: no site packages, no environment, hence a quick start. A session of its own: Ctrl-C in a
        # terminal reaches this program alone, which then stops the brokers in order.
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD), str(os.getpid()), *map(str, remove)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def start(self, argv: Sequence[str], *, log: Path, user: int | None = None) -> int:
        """Start a program, its output appended to ``log``; its process id. ``user``: as whom, for root alone."""
        return int(self._ask({"start": list(argv), "log": str(log), "user": user})["pid"])

    def signal(self, pid: int, signum: int) -> None:
        """Send a signal to a process started here; one that has ended gets none."""
        self._ask({"signal": int(signum), "pid": pid})

    def poll(self, pid: int) -> int | None:
        """The exit status of a process started here (negative: the signal that ended it); None while it runs."""
        status = self._ask({"poll": pid})["returncode"]
        return None if status is None else int(status)

    def close(self) -> None:
        """Kill every process, remove the folders, and wait until that is done."""
        with self._lock:
            self._exchange(b"exit\n")  # closing the pipe would not do: a forked child of this process may hold it
            try:
                self._child.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
        for folder in self._remove:  # still there when the child was killed
            shutil.rmtree(folder, ignore_errors=True)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._asked += 1
            answer = self._answer(request | {"number": self._asked})
        if "error" in answer:
            raise DevBrokerError(f"the process that owns the brokers says: {answer['error']}")
        return answer

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its own: an interrupt (Ctrl-C) may have left those of requests before it unread."""
        line = self._exchange(json.dumps(request).encode() + b"\n")
        while line:
            answer: dict[str, Any] = json.loads(line)
            if answer["number"] == request["number"]:
                return answer
            line = self._exchange(b"")
        raise DevBrokerError("the process that owns the brokers has ended, and the brokers with it: start again")

    def _exchange(self, request: bytes) -> bytes:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(request)
            stdin.flush()
            return stdout.readline()
        except (OSError, ValueError):
            return b""
