# SPDX-License-Identifier: Apache-2.0
"""Run tests in another environment, and count what they say."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import subunit
import testtools
from matrix_cells import Cell

_PASSED, _LACKING, _SKIPPED = "success", "xfail", "skip"
_TOLD_EVERY = 20  # tests
_SHOWN_LINES = 15  # of a failure


@dataclass(slots=True)
class Counts:
    """How many tests ended how. ``lacking`` ran and failed as they must where the versions lack something.

    ``reasons``: why tests were skipped or lack something, each once. ``seconds``: the whole run took so long.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    lacking: int = 0
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped + self.lacking

    def __str__(self) -> str:
        shown = [f"{self.passed} passed", f"{self.failed} failed"]
        shown += [f"{self.skipped} skipped"] if self.skipped else []
        shown += [f"{self.lacking} lacking"] if self.lacking else []
        return f"{', '.join(shown)} ({self.seconds:.0f} s)"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a cell: the counts of what ran, or the reason why nothing did."""

    cell: Cell
    contracts: Counts | None = None
    job: Counts | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        return any(counts is not None and counts.failed for counts in (self.contracts, self.job))


class Results:
    """The outcomes by cell, kept in a file as JSON if there is one, so that a run that breaks off can go on."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._outcomes: dict[tuple[str, ...], Outcome] = {}
        if file is not None and file.exists():
            for kept in json.loads(file.read_text()):
                contracts, job = (Counts(**kept[name]) if kept[name] else None for name in ("contracts", "job"))
                self._remember(Outcome(Cell(**kept["cell"]), contracts, job, kept["reason"]))

    def has(self, cell: Cell) -> bool:
        return _versions(cell) in self._outcomes

    def of(self, cell: Cell) -> Outcome:
        """As this cell's, whatever its name and whether it was required when it ran."""
        return replace(self._outcomes[_versions(cell)], cell=cell)

    def keep(self, outcome: Outcome) -> None:
        self._remember(outcome)
        if self._file is not None:
            self._file.write_text(json.dumps([asdict(each) for each in self._outcomes.values()], indent=2) + "\n")

    def _remember(self, outcome: Outcome) -> None:
        self._outcomes[_versions(outcome.cell)] = outcome


def _versions(cell: Cell) -> tuple[str, ...]:
    return cell.kafka, cell.confluent_kafka, cell.python


def run_tests(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, timeout: float, say: Callable[[str], None]
) -> Counts:
    """Run a command that writes a subunit stream. What does not start, or not end in time, has failed."""
    counts = Counts()
    began = time.monotonic()

    def ended(test: Any) -> None:
        total = counts.total
        _count(counts, test, say)
        if counts.total // _TOLD_EVERY > total // _TOLD_EVERY:
            say(f"  {counts.total} tests, {counts.failed} failed, {time.monotonic() - began:.0f} s")

    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        )
        late = threading.Event()

        def end() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(timeout, end)
        timer.start()
        try:
            result = testtools.StreamToDict(ended)
            result.startTestRun()
            subunit.ByteStreamToStreamResult(process.stdout, non_subunit_name="stdout").run(result)
            result.stopTestRun()
            status = process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
        said.seek(0)
        _judge(counts, status, timeout if late.is_set() else None, said.read().decode(errors="replace"), say)
    counts.seconds = time.monotonic() - began
    return counts


def _judge(counts: Counts, status: int, late: float | None, said: str, say: Callable[[str], None]) -> None:
    """Count a run that broke off, or in which nothing ran, as one failure more."""
    if late is not None:
        complaint = f"it did not end within {late:g} s"
    elif status < 0 or not counts.total or (status and not counts.failed):
        complaint = f"it ended with exit status {status} after {counts.total} tests"
    else:
        return
    lines = said.splitlines()
    counts.failed += 1
    counts.reasons.append(": ".join([complaint, *lines[-1:]]))
    say("\n".join([f"  FAILED: {complaint}", *lines[-_SHOWN_LINES:]]))


def _count(counts: Counts, test: dict[str, Any], say: Callable[[str], None]) -> None:
    kind = test["status"]
    if kind == "exists":
        return
    if kind == _PASSED:
        counts.passed += 1
    elif kind in (_SKIPPED, _LACKING):
        if kind == _SKIPPED:
            counts.skipped += 1
        else:
            counts.lacking += 1
        reason = _reason(test)
        if reason not in counts.reasons:
            counts.reasons.append(reason)
    elif test["id"] != "stdout":
        counts.failed += 1
        lines = "\n".join(content.as_text() for content in test["details"].values()).splitlines()
        say("\n".join([f"  FAILED: {test['id']}", *lines[-_SHOWN_LINES:]]))


def _reason(test: dict[str, Any]) -> str:
    details = test["details"]
    found = details.get("reason")
    return found.as_text().strip() if found else "no reason given"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
