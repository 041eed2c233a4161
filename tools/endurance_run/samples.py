# SPDX-License-Identifier: Apache-2.0
"""Samples of the processes that are never killed: memory, descriptors, threads and CPU; of tables and latencies."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import psycopg

SERIES_OF_A_PROCESS = ("memory_mib", "descriptors", "threads", "cpu_seconds")
_MIB = 1 << 20
_KIB_IN_MIB = 1 << 10
_OWN = re.compile(r"^(?:RssAnon|VmSwap):\s+(\d+) kB$", re.MULTILINE)
_HISTOGRAM, _TOTAL = "GC.class_histogram", re.compile(r"^Total\s+\d+\s+(\d+)$", re.MULTILINE)
_HISTOGRAM_SECONDS = 30.0
_ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL|PANIC)\b|^Traceback ")
_TABLES = "SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits WHERE inhparent = %s::regclass"


@dataclass(frozen=True, slots=True)
class Sample:
    """``values``: the values by quantity, for example ``persister.1 memory_mib``. ``seconds``: the time since the start
    of the run.
    ``piece``: the number of times that the run was started or resumed, each with new processes."""

    seconds: float
    values: dict[str, float]
    piece: int = 1


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """The first line of an error in the log of an instance."""

    seconds: float
    instance: str
    text: str


def process_values(name: str, tree: Iterable[psutil.Process]) -> dict[str, float]:
    """Return the sums over a process and its descendants."""
    sums = dict.fromkeys(SERIES_OF_A_PROCESS, 0.0)
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess, OSError), process.oneshot():
            times = process.cpu_times()
            sums["memory_mib"] += own_memory_mib(Path(f"/proc/{process.pid}/status").read_text())
            sums["descriptors"] += process.num_fds()
            sums["threads"] += process.num_threads()
            sums["cpu_seconds"] += times.user + times.system
    return {f"{name} {quantity}": value for quantity, value in sums.items()}


def own_memory_mib(status: str) -> float:
    """Return the memory that the process itself has written, from its ``/proc/PID/status``. Pages of programs and
    libraries are not included: the kernel loads them at their first use, shares them, and can drop them."""
    return sum(map(int, _OWN.findall(status))) / _KIB_IN_MIB


def heap_values(name: str, tree: Iterable[psutil.Process]) -> dict[str, float]:
    """Return the size of all objects that the JVMs still use, after a full collection; nothing without a JVM, or if
    Java is installed without ``jcmd``."""
    sizes = [size for process in tree if (size := _heap_mib(process)) is not None]
    return {f"{name} heap_mib": sum(sizes)} if sizes else {}


def _heap_mib(process: psutil.Process) -> float | None:
    with contextlib.suppress(psutil.Error, OSError, subprocess.TimeoutExpired):
        if process.name() == "java":
            command = [str(Path(process.exe()).with_name("jcmd")), str(process.pid), _HISTOGRAM]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_HISTOGRAM_SECONDS, check=False)
            if total := _TOTAL.search(answer.stdout):
                return int(total[1]) / _MIB
    return None


def database_values(url: str) -> dict[str, float]:
    """Return the rows and the size of the measurements; nothing while the database is unavailable."""
    with contextlib.suppress(psycopg.Error), psycopg.connect(url, connect_timeout=5) as session:
        rows = session.execute("SELECT count(*) FROM measurements").fetchone()
        size = session.execute(_TABLES, ("measurements",)).fetchone()
        if rows and size and rows[0]:
            return {"database rows": float(rows[0]), "database bytes_per_row": float(size[0]) / rows[0]}
    return {}


def percentile(values: Iterable[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


class SampleFile:
    """Appends records to a file of JSON lines, which a resumed run continues."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, *records: Sample | ErrorLine) -> None:
        with self._path.open("a") as file:
            file.writelines(json.dumps(asdict(record)) + "\n" for record in records)

    def read(self, kind: Callable[..., Sample | ErrorLine]) -> list[Sample | ErrorLine]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [kind(**json.loads(line)) for line in lines if line.endswith("}")]


class LogWatch:
    """Finds errors in logs as they are written, so that the time of an error is the time at which it is found."""

    def __init__(self, logs: Mapping[str, Path], *, skip: bool = False) -> None:
        """``skip``: ignore the current contents of the logs."""
        self._logs = logs
        self._offsets = {name: path.stat().st_size if skip else 0 for name, path in logs.items()}

    def errors(self, seconds: float) -> list[ErrorLine]:
        """Return the errors since the last call."""
        found = []
        for name, path in self._logs.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[name])
                text = file.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._offsets[name] += len(complete)
            found += [
                ErrorLine(seconds, name, line[:300])
                for line in complete.decode(errors="replace").splitlines()
                if _ERROR.search(line)
            ]
        return found
