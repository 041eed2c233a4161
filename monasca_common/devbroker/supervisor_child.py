# SPDX-License-Identifier: Apache-2.0
"""The process that owns the brokers, so that no broker outlives the program that started it.

This process is the parent of every broker. When its own parent ends for any reason, it kills all brokers (SIGKILL,
which also ends frozen processes) and removes the given folders. Three mechanisms ensure this: the pipe from the parent
closes; the parent's id is also checked, because a child that the parent forked may hold the pipe open; and if this
process itself is killed, Linux kills the brokers (PR_SET_PDEATHSIG).

Processes that a broker or database has started are killed as well: when they lose their parent, Linux makes this
process their parent (PR_SET_CHILD_SUBREAPER). Frozen sessions of a database (SIGSTOP) would not end by themselves.

It runs as a script that needs only the standard library, so that it starts within a few hundredths of a second. It
reads one JSON object per line and responds to each with a JSON object that has the ``number`` of the request:
``{"start": argv, "log": path, "user": id}`` (``null``: its own user), ``{"signal": n, "pid": p}``, ``{"poll": p}``; the
bare word ``exit`` ends it.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PARENT_CHECK_SECONDS = 0.5


class ChildProcesses:
    """The processes that this process has started, by process id."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        # the library is loaded here, because it must not be loaded between fork and exec
        self._libc = ctypes.CDLL(None)
        if sys.platform == "linux":
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "start" in request:
            return {"pid": self._start(request["start"], request["log"], request["user"])}
        if "signal" in request:
            self._signal(self._processes[request["pid"]], request["signal"])
            return {}
        return {"returncode": self._processes[request["poll"]].poll()}

    def _signal(self, process: "subprocess.Popen[bytes]", signum: int) -> None:
        """Send a signal; after SIGSTOP, wait until every thread of the process is stopped."""
        # Popen detects whether the process has already been waited for, so a reused process id never gets the signal.
        process.send_signal(signum)
        if signum == signal.SIGSTOP and sys.platform == "linux" and process.poll() is None:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        # When a process ends, its children can become children of this process.
        while orphans := self._orphans():
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)

    def reap_orphans(self) -> None:
        """Wait for orphans that have ended; otherwise they would remain zombies."""
        for pid in self._orphans():
            os.waitpid(pid, os.WNOHANG)

    def _orphans(self) -> list[int]:
        """Return the children that this process has not started; their own parents have ended."""
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                return [pid for pid in map(int, children.read().split()) if pid not in self._processes]
        except OSError:  # not on Linux
            return []

    def _start(self, argv: list[str], log: str, user: int | None) -> int:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=user,
                group=user,
                extra_groups=None if user is None else (),
                # This is safe because this process has a single thread, to which PDEATHSIG is also bound. It runs after
                # the user is changed, because that would reset it.
                preexec_fn=self._die_with_parent,
            )
        self._processes[process.pid] = process
        return process.pid

    def _die_with_parent(self) -> None:
        if sys.platform == "linux":
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(children: ChildProcesses, parent: int) -> None:
    """Serve requests until the parent has ended."""
    pending = b""
    while os.getppid() == parent:
        children.reap_orphans()
        if not select.select([0], [], [], _PARENT_CHECK_SECONDS)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line == b"exit":
                return
            os.write(1, _reply(children, line))


def _reply(children: ChildProcesses, line: bytes) -> bytes:
    request = json.loads(line)
    try:
        answer = children.answer(request)
    except (OSError, KeyError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(answer | {"number": request["number"]}).encode() + b"\n"


def main(parent: int, folders: list[str]) -> None:
    """Serve the process ``parent``; when it ends, kill the started processes and remove ``folders``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    children = ChildProcesses()
    try:
        # The parent can end at any time, which may also break the pipe.
        with contextlib.suppress(BrokenPipeError):
            _serve(children, parent)
    finally:
        children.kill_all()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
