# SPDX-License-Identifier: Apache-2.0
"""The process that owns the brokers, so that nothing outlives the program that wanted them.

It is the parent of every broker. When its own parent ends, however it ends, it kills them all (SIGKILL, which
frozen processes obey as well) and removes the folders it was told to. Three things make that certain: the pipe
from the parent closes; a child that the parent forked may hold that pipe open, so the parent's id is watched as
well; and should this process itself be killed, Linux kills the brokers (PR_SET_PDEATHSIG).

What a broker or database has started is ended as well: where it loses its parent, Linux gives it to this process
(PR_SET_CHILD_SUBREAPER). Sessions of a database that stand still (SIGSTOP) would not notice by themselves.

Run as a script, with the standard library alone, for it to start in a few hundredths of a second. It reads one JSON
object a line and answers each with one, which has the ``number`` of the request: ``{"start": argv, "log": path,
"user": id}`` (``null``: its own), ``{"signal": n, "pid": p}``, ``{"poll": p}``; the bare word ``exit`` ends it.
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


class Brood:
    """The processes this one has started, by process id; none is forgotten before it has been waited for."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._libc = ctypes.CDLL(None)  # loaded here, not between fork and exec
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
        """Send a signal; one that stops the process is answered when every thread of it stands still."""
        # Popen knows whether the process was waited for, so that a reused id is never hit.
        process.send_signal(signum)
        if signum == signal.SIGSTOP and sys.platform == "linux" and process.poll() is None:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        # Each that ends may leave us its own.
        while orphans := self._orphans():
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)

    def bury_orphans(self) -> None:
        """Wait for those that have ended, or they would be listed for as long as this process runs."""
        for pid in self._orphans():
            os.waitpid(pid, os.WNOHANG)

    def _orphans(self) -> list[int]:
        """Children of this process that it has not started: their own parents are gone."""
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
                # Safe here: this process has a single thread, which is also what PDEATHSIG is tied to. It runs after
                # the change of user, which would undo it.
                preexec_fn=self._die_with_parent,
            )
        self._processes[process.pid] = process
        return process.pid

    def _die_with_parent(self) -> None:
        if sys.platform == "linux":
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(brood: Brood, parent: int) -> None:
    """Answer requests until the parent is gone."""
    pending = b""
    while os.getppid() == parent:
        brood.bury_orphans()
        if not select.select([0], [], [], _PARENT_CHECK_SECONDS)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line == b"exit":
                return
            os.write(1, _reply(brood, line))


def _reply(brood: Brood, line: bytes) -> bytes:
    request = json.loads(line)
    try:
        answer = brood.answer(request)
    except (OSError, KeyError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(answer | {"number": request["number"]}).encode() + b"\n"


def main(parent: int, folders: list[str]) -> None:
    """Serve process ``parent``; on the way out kill what was started and remove ``folders``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    brood = Brood()
    try:
        # The parent may be gone between any two lines: a broken pipe is one more way to learn it.
        with contextlib.suppress(BrokenPipeError):
            _serve(brood, parent)
    finally:
        brood.kill_all()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
