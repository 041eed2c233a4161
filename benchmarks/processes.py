# SPDX-License-Identifier: Apache-2.0
"""Server processes, and the CPU time of a process and its children, such as Spark's JVM and its Python workers."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from monasca_common.devbroker.supervisor import wait_until

Server = subprocess.Popen[bytes]

_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.01
_SHOWN_CHARACTERS = 2000


@contextlib.contextmanager
def running(command: Sequence[str], environ: dict[str, str] | None = None) -> Iterator[Server]:
    """Run a server, and stop it on leaving. A `RuntimeError` in the context gets the end of the server's log."""
    with tempfile.NamedTemporaryFile() as log:
        server = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            yield server
        except RuntimeError as error:
            tail = Path(log.name).read_text(errors="replace")[-_SHOWN_CHARACTERS:]
            raise RuntimeError(f"{error}: {tail}") from error
        finally:
            server.terminate()
            try:
                server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                raise


def wait_for(server: Server, reached: Callable[[], bool], seconds: float) -> None:
    """Wait until ``reached`` returns true. Raises `RuntimeError` if the server ends or this takes longer."""
    in_time = wait_until(lambda: server.poll() is not None or reached(), seconds, every=_LOOK_SECONDS)
    if server.poll() is not None or not in_time:
        raise RuntimeError(f"the server ended, or was not ready within {seconds:g} s")


def cpu_seconds(pid: int) -> float:
    seconds = 0.0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:2])
    return seconds
