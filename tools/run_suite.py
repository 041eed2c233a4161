# SPDX-License-Identifier: Apache-2.0
"""Run the tests in a folder by several processes; the classes that take longest begin first.

Each process takes the next class when it is through with one, so that all end about together. It prefers a class of
the module that it comes from: these mostly share a broker. Writes ``NAME.<process>.subunit`` into the results. The
exit status is 0 when every test passed, 1 when some failed, 2 when the run broke off. A process that dies fails the
test that it was in; another one runs what it had not begun. One that says nothing for 20 minutes is killed.

How long each class took is kept in the user's cache, for every checkout on the machine. Where nothing is known,
``tools/class_seconds.json`` has the times of a machine with two cores.
"""

import argparse
import json
import os
import selectors
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import subunit

_WORKER = Path(__file__).with_name("suite_worker.py")
_SHIPPED_TIMES = Path(__file__).with_name("class_seconds.json")
_CORES = os.cpu_count() or 1
_SHOWN = 10
_READ_BYTES = 65536
_SILENT_SECONDS = 1200.0  # a process is silent for 900 s at most: in the set-up of one class
_LOOK_SECONDS = 5.0
_TESTS_FAILED, _BROKE_OFF = 1, 2
_GOOD = ("success", "skip", "xfail")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", help="where the tests are, such as monasca_common/tests/unit")
    parser.add_argument("results", type=Path, help="the folder for the streams")
    parser.add_argument("name", help="what the streams are called")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--busy", default="", help="the name that begins those of classes which keep a core busy")
    parser.add_argument("--only", type=Path, help="a file with the tests, or classes, to run: one a line")
    arguments = parser.parse_args()
    units = listed(arguments.folder)
    if arguments.only is not None:
        units = chosen(units, set(arguments.only.read_text().split()))
    times = Times(cache_file())
    run = _Run(Queue(units, times.seconds, arguments.busy), arguments.results, arguments.name)
    status = run.run(arguments.processes)
    if arguments.only is None:
        times.keep(run.took)
        print(f"\nThe slowest classes of the {arguments.name} tests:")
        for name, seconds in sorted(run.took.items(), key=lambda each: -each[1])[:_SHOWN]:
            print(f"{seconds:8.1f} s  {name}")
    return status


def listed(folder: str) -> dict[str, list[str]]:
    """The ids of the tests by class. They are imported in a process of their own, which a worker's start is not."""
    done = subprocess.run([sys.executable, str(_WORKER), "--list", folder], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"the tests in {folder} cannot be listed")
    units: dict[str, list[str]] = defaultdict(list)
    for test_id in json.loads(done.stdout.splitlines()[-1]):
        units[test_id.rpartition(".")[0]].append(test_id)
    return dict(units)


def chosen(units: dict[str, list[str]], names: set[str]) -> dict[str, list[str]]:
    """Of all units what is named, by class or by test."""
    found = {name: [each for each in ids if name in names or each in names] for name, ids in units.items()}
    return {name: ids for name, ids in found.items() if ids}


def cache_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monasca-common" / "class_seconds.json"


class Times:
    """Seconds by class: those of the last run on this machine, else those that are shipped."""

    def __init__(self, file: Path, shipped: Path = _SHIPPED_TIMES) -> None:
        self._file = file
        self._measured = _read(file)
        self.seconds = _read(shipped) | self._measured

    def keep(self, took: dict[str, float]) -> None:
        """Kept as far as possible: a cache that cannot be written costs a better order, and nothing else."""
        measured = self._measured | {name: round(seconds, 1) for name, seconds in took.items()}
        unfinished = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(measured, indent=0, sort_keys=True) + "\n")
            unfinished.replace(self._file)
        except OSError as error:
            print(f"the times of the classes are not kept: {error}", file=sys.stderr)


def _read(file: Path) -> dict[str, float]:
    try:
        found = json.loads(file.read_text())
        return {str(name): float(seconds) for name, seconds in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


class Queue:
    """Classes by falling time; one of which nothing is known is taken for a long one.

    Those whose names begin with ``busy`` keep a core busy (Spark), the others mostly wait (brokers, clocks). So some
    processes are given the busy ones first, and the others the rest: all at once, the busy ones would slow each other
    down, and leave the cores idle at the end.
    """

    def __init__(self, units: dict[str, list[str]], seconds: dict[str, float], busy: str = "") -> None:
        self._units = dict(sorted(units.items(), key=lambda unit: -seconds.get(unit[0], float("inf"))))
        self._busy = busy

    def take(self, module: str = "", *, busy: bool = False) -> tuple[str, list[str]] | None:
        """The longest class of the wanted kind, one of ``module`` first; of the other kind when there is none left;
        None when all are taken."""
        wanted = [name for name in self._units if self._is_busy(name) == busy] or list(self._units)
        same = (name for name in wanted if module and name.rpartition(".")[0] == module)
        name = next(same, next(iter(wanted), None))
        return None if name is None else (name, self._units.pop(name))

    def put_back(self, name: str, ids: list[str]) -> None:
        self._units[name] = ids

    def _is_busy(self, name: str) -> bool:
        return bool(self._busy) and name.startswith(self._busy)


@dataclass(eq=False)
class _Worker:
    number: int
    process: subprocess.Popen[str]
    answers: int  # the file descriptor that it answers to
    busy: bool  # it takes classes that keep a core busy first
    heard: bytes = b""  # of a line that is not complete
    heard_at: float = field(default_factory=time.monotonic)
    unit: str = ""
    begun: str = ""  # the test it is in
    left: list[str] = field(default_factory=list)  # of its class, not begun
    not_set_up: bool = False


class _Run:
    """One run of a suite. ``took``: seconds by class, of those that ran to their end."""

    def __init__(self, queue: Queue, results: Path, name: str) -> None:
        self.took: dict[str, float] = {}
        self._queue = queue
        self._results = results
        self._name = name
        self._numbers = 0
        self._status = 0
        self._workers: set[_Worker] = set()
        self._selector = selectors.DefaultSelector()

    def run(self, processes: int) -> int:
        """The exit status."""
        try:
            for _ in range(processes):
                self._begin()
            while self._workers:
                for key, _ in self._selector.select(_LOOK_SECONDS):
                    self._hear(key.data)
                self._end_silent()
        finally:
            for worker in self._workers:
                worker.process.kill()
        return self._status

    def _begin(self) -> None:
        busy = sum(worker.busy for worker in self._workers) < _CORES
        taken = self._queue.take(busy=busy)
        if taken is None:
            return
        self._numbers += 1
        stream = self._results / f"{self._name}.{self._numbers}.subunit"
        heard, said = os.pipe()
        command = [sys.executable, str(_WORKER), str(self._numbers), str(stream), str(said)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(said,), text=True)
        os.close(said)
        worker = _Worker(self._numbers, process, heard, busy)
        self._workers.add(worker)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        self._give(worker, *taken)

    def _give(self, worker: _Worker, name: str, ids: list[str]) -> None:
        worker.unit, worker.left, worker.begun, worker.not_set_up = name, list(ids), "", False
        stdin = worker.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"class": name, "ids": ids}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it has died, as its answers tell

    def _end_silent(self) -> None:
        """One that hangs, for example because a thread of a test keeps it from its end, would hold up the run."""
        for worker in self._workers:
            if time.monotonic() - worker.heard_at > _SILENT_SECONDS:
                worker.process.kill()

    def _hear(self, worker: _Worker) -> None:
        worker.heard_at = time.monotonic()
        received = os.read(worker.answers, _READ_BYTES)
        if not received:
            self._bury(worker)
            return
        *lines, worker.heard = (worker.heard + received).split(b"\n")
        for line in lines:
            self._note(worker, json.loads(line))

    def _note(self, worker: _Worker, answer: dict[str, Any]) -> None:
        if "began" in answer:
            worker.begun = answer["began"]
            worker.left.remove(worker.begun)
        elif "ended" in answer:
            worker.begun = ""
            worker.not_set_up |= answer["ended"].startswith("setUpClass ")
            if answer["status"] not in _GOOD:
                self._status = max(self._status, _TESTS_FAILED)
        else:
            self.took[answer["done"]] = answer["seconds"]
            if worker.left and not worker.not_set_up:
                self._fail(worker.left, "it was listed, and its class does not have it")
            taken = self._queue.take(worker.unit.rpartition(".")[0], busy=worker.busy)
            worker.unit, worker.left = "", []
            if taken is not None:
                self._give(worker, *taken)
            elif worker.process.stdin is not None:
                worker.process.stdin.close()

    def _bury(self, worker: _Worker) -> None:
        """It ended: in order, or within a test, which then has failed; or before any, as its whole class has."""
        status = worker.process.wait()
        self._selector.unregister(worker.answers)
        os.close(worker.answers)
        self._workers.discard(worker)
        if not worker.unit and status == 0:
            return
        self._status = max(self._status, _TESTS_FAILED if worker.unit else _BROKE_OFF)
        where = worker.begun or worker.unit or "its end"
        print(f"process {worker.number} of the {self._name} tests ended ({status}) in {where}", file=sys.stderr)
        ended = f"its process ended with status {status}"
        if worker.begun:
            self._fail([worker.begun], ended)
            if worker.left:
                self._queue.put_back(worker.unit, worker.left)
        else:
            self._fail(worker.left, ended)
        self._begin()

    def _fail(self, ids: list[str], reason: str) -> None:
        self._status = max(self._status, _TESTS_FAILED)
        self._numbers += 1
        with (self._results / f"{self._name}.{self._numbers}.subunit").open("wb") as raw:
            stream = subunit.StreamResultToBytes(raw)
            trace = {"file_name": "traceback", "mime_type": "text/plain;charset=utf8"}
            for each in ids:
                stream.status(test_id=each, file_bytes=reason.encode(), **trace)
                stream.status(test_id=each, test_status="fail")


if __name__ == "__main__":
    sys.exit(main())
