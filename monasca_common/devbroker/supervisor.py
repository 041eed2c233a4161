# SPDX-License-Identifier: Apache-2.0
"""Starts servers through a child process that owns them (`supervisor_child`)."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from monasca_common.devbroker.errors import DevBrokerError

_CHILD = Path(__file__).with_name("supervisor_child.py")
_CLOSE_SECONDS = 15.0
_LOG_TAIL_LINES = 15


def wait_until(holds: Callable[[], object], seconds: float, *, every: float = 0.02) -> bool:
    """Call ``holds`` until it returns a true value. Return whether it did within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


class Supervisor:
    """Starts processes that are killed when this process ends, even if it is killed. Thread-safe. ``remove``: folders
    to remove after the last process has ended.
    """

    def __init__(self, *, remove: Sequence[str | Path] = ()) -> None:
        self._lock = threading.Lock()
        self._remove = tuple(remove)
        self._asked = 0
        # -I and -S omit site packages and environment variables, for a quick start. A new session ensures that Ctrl-C
        # in a terminal reaches only this program, which stops the brokers in an orderly way.
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
        """Start a program, append its output to ``log``, and return its process id. ``user``: a user id; only for
        root."""
        return int(self._ask({"start": list(argv), "log": str(log), "user": user})["pid"])

    def signal(self, pid: int, signum: int) -> None:
        """Send a signal to a process started here, unless it has ended."""
        self._ask({"signal": int(signum), "pid": pid})

    def poll(self, pid: int) -> int | None:
        """Return the exit status of a process started here (negative: the signal), or ``None`` while it runs."""
        status = self._ask({"poll": pid})["returncode"]
        return None if status is None else int(status)

    def close(self) -> None:
        """Kill every process, and remove the folders."""
        with self._lock:
            self._exchange(b"exit\n")  # closing the pipe is not sufficient, because a forked child may hold it open
            try:
                self._child.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
        for folder in self._remove:  # the folders still exist if the child was killed
            shutil.rmtree(folder, ignore_errors=True)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._asked += 1
            answer = self._answer(request | {"number": self._asked})
        if "error" in answer:
            raise DevBrokerError(f"the process that owns the brokers failed: {answer['error']}")
        return answer

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the response to this request. After an interrupt, earlier unread responses may precede it."""
        line = self._exchange(json.dumps(request).encode() + b"\n")
        while line:
            answer: dict[str, Any] = json.loads(line)
            if answer["number"] == request["number"]:
                return answer
            line = self._exchange(b"")
        raise DevBrokerError(
            "the process that owns the brokers has ended, and so have the brokers: start the cluster again"
        )

    def _exchange(self, request: bytes) -> bytes:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(request)
            stdin.flush()
            return stdout.readline()
        except (OSError, ValueError):
            return b""


class ServerProcess:
    """A server that a supervisor starts, possibly several times, with its output in ``log``."""

    def __init__(self, supervisor: Supervisor, log: Path) -> None:
        self._supervisor = supervisor
        self._log = log
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or ``None`` before the first start."""
        return self._pid

    @property
    def status(self) -> int | None:
        """The exit status (negative: the signal), or ``None`` before the first start and while it runs."""
        return None if self._pid is None else self._supervisor.poll(self._pid)

    @property
    def running(self) -> bool:
        """Whether the process exists, even if it is frozen."""
        return self._pid is not None and self.status is None

    def launch(self, argv: Sequence[str], *, user: int | None = None) -> None:
        self._pid = self._supervisor.start(argv, log=self._log, user=user)

    def signal(self, signum: int) -> None:
        """Send a signal, unless the process has ended."""
        if self._pid is not None:
            self._supervisor.signal(self._pid, signum)

    def ended_within(self, seconds: float) -> bool:
        return wait_until(lambda: not self.running, seconds)

    def ready_within(self, seconds: float, is_ready: Callable[[], object]) -> bool:
        """Wait for a starting server. Return whether it is ready; return early if it has exited."""
        return wait_until(lambda: is_ready() or not self.running, seconds) and bool(self.running)

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.is_file() else []
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(nothing)"
