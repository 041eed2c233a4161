#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the complete stack on this machine under load with one fault per minute, judge the result, and write a report.

The exit status is 0 if the verdict is clean, 1 if it is not, and 2 if the run did not complete. An interrupted run
continues if the command is repeated: its state is in a folder next to the report, which a clean run removes. For
example: python tools/endurance.py --minutes 10 --report endurance.md
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

from endurance_run import faults, judgement, report
from endurance_run.evidence import EXPRESSION, Evidence, accepted_notifications
from endurance_run.faults import FAULTS, InjectedFault, PlannedFault
from endurance_run.load import Load, read_journal
from endurance_run.samples import (
    ErrorLine,
    LogWatch,
    Sample,
    SampleFile,
    database_values,
    heap_values,
    percentile,
    process_values,
)
from endurance_run.stack import Stack

from monasca_common.devbroker import DevBrokerError, ports
from monasca_common.quickstart.alarm import LocalApi
from monasca_common.quickstart.services import ServiceFailed
from monasca_common.quickstart.webhook import ACCEPTED, LocalWebhook

_SAMPLE_SECONDS = 5.0
_HEAP_SECONDS = 300.0  # each sample of a heap stops its JVM for a full collection
_STATE_SECONDS = 1.0
_TICK_SECONDS = 0.25
_FINISH_SECONDS = 90.0
_NOTIFIED_SECONDS = 120.0
_LEAST_WARM_UP_SECONDS = 120.0
_RATE = 100.0
_RESUME, _INTERRUPTED = "resume", "interrupted"


@dataclass(slots=True)
class RunState:
    """The stored state for a resumed run. ``elapsed``: seconds of load so far."""

    seed: int
    minutes: int
    rate: float
    identity: str
    webhook_port: int
    elapsed: float = 0.0
    pieces: int = 0
    injected: list[InjectedFault] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> RunState:
        content: dict[str, Any] = json.loads(path.read_text())
        content["injected"] = [InjectedFault(**each) for each in content["injected"]]
        return cls(**content)

    def end_interrupted(self) -> None:
        """End the fault that was in progress when the run was interrupted."""
        self.injected = [replace(fault, ended=min(fault.ended, self.elapsed)) for fault in self.injected]

    def write(self, path: Path) -> None:
        """Replace the file, so that it is complete even if this process is killed."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)


class _RecordedWebhook(LocalWebhook):
    """Appends each attempt to ``file``, so that a resumed run has all attempts."""

    def __init__(self, port: int, file: Path) -> None:
        super().__init__(port)
        self._file = file

    def record(self, notification_id: str, body: dict[str, Any]) -> int:
        answer = super().record(notification_id, body)
        with self._file.open("a") as file:
            file.write(json.dumps({"id": notification_id, "accepted": answer == ACCEPTED}) + "\n")
        return answer


class EnduranceRun:
    """A run in ``folder``, new or resumed."""

    def __init__(self, state: RunState, folder: Path, only: tuple[str, ...] = tuple(FAULTS)) -> None:
        self._state = state
        self._folder = folder
        self._only = only
        self._stack = Stack(folder, say)
        self._samples = SampleFile(folder / "samples.jsonl")
        self._errors = SampleFile(folder / "errors.jsonl")
        self._received = folder / "webhook.jsonl"
        self._failure: BaseException | None = None
        self._over = threading.Event()
        self._began = 0.0

    def go(self, command: str) -> tuple[report.Outcome, dict[str, list[tuple[float, float]]]]:
        """Run until the end, and judge the result. Raises `ServiceFailed` or `DevBrokerError` if a part does not
        start."""
        state = self._state
        hook = _RecordedWebhook(state.webhook_port, self._received)
        hook.start()
        try:
            with self._stack.running():
                return self._run_and_judge(command)
        finally:
            hook.stop()

    def release(self) -> None:
        """Unmount the disk and remove the state."""
        self._stack.unmount()
        shutil.rmtree(self._folder)

    def _run_and_judge(self, command: str) -> tuple[report.Outcome, dict[str, list[tuple[float, float]]]]:
        state = self._state
        is_resumed = state.pieces > 0
        watch = LogWatch({each.name: each.log for each in self._stack.instances.values()}, skip=is_resumed)
        if is_resumed:
            state.end_interrupted()
            state.injected.append(InjectedFault(_RESUME, "the complete stack", state.elapsed, math.inf))
        else:
            self._define_alarm()
        state.pieces += 1
        load = Load(state.identity, state.seed, self._stack.api_port, self._folder / "journal.jsonl", state.rate)
        self._began = time.monotonic() - state.elapsed
        load.start(state.elapsed)
        skipped = faults.skipped(self._stack)
        kinds = tuple(kind for kind in self._only if kind not in skipped)
        planned = faults.schedule(state.seed, state.minutes, kinds)
        planned = [fault for fault in planned if fault.at_seconds >= state.elapsed]
        injecting = threading.Thread(target=self._inject, args=(planned,), name="faults", daemon=True)
        injecting.start()
        say(f"load and faults for {max(0.0, state.minutes * 60 - state.elapsed):.0f} s, seed {state.seed}")
        try:
            self._watch(load, watch, injecting)
        finally:
            self._over.set()
            injecting.join()
        if self._failure is not None:
            raise ServiceFailed(f"a fault failed; repeat the command to resume: {self._failure!r}") from self._failure
        outcome = report.Outcome(state.seed, state.minutes, state.rate, command, state.pieces, skipped=skipped)
        outcome.violations += [f"{name} has ended" for name in self._stack.ended()]
        unacknowledged = load.finish(_FINISH_SECONDS)
        if unacknowledged:
            outcome.violations.append(f"load: {unacknowledged} posts were not acknowledged")
        outcome.violations += [f"load: refused: {each}" for each in load.refused[:5]]
        self._judge(outcome, watch)
        samples = cast("list[Sample]", self._samples.read(Sample))
        return outcome, judgement.by_minute(samples)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _define_alarm(self) -> None:
        api = LocalApi(self._stack.api_port)
        address = f"http://127.0.0.1:{self._state.webhook_port}/alarms"
        method = api.post("/v2.0/notification-methods", {"name": "hook", "type": "WEBHOOK", "address": address})["id"]
        actions = {name: [method] for name in ("alarm_actions", "ok_actions", "undetermined_actions")}
        definition = {"name": "wave", "expression": EXPRESSION, "match_by": ["series"], **actions}
        api.post("/v2.0/alarm-definitions", definition)

    def _watch(self, load: Load, watch: LogWatch, injecting: threading.Thread) -> None:
        """Sample until the time is over and the last fault has ended."""
        state_due = sample_due = heap_due = 0.0
        while self._failure is None:
            elapsed = self._elapsed()
            if elapsed >= self._state.minutes * 60 and not injecting.is_alive():
                return
            if elapsed >= state_due:
                state_due = elapsed + _STATE_SECONDS
                self._errors.append(*watch.errors(elapsed))
                self._state.elapsed = elapsed
                self._state.write(self._folder / "state.json")
            if elapsed >= sample_due:
                sample_due = elapsed + _SAMPLE_SECONDS
                self._samples.append(self._sample(elapsed, load))
            if elapsed >= heap_due:
                heap_due = elapsed + _HEAP_SECONDS
                self._samples.append(self._heaps(elapsed))
            time.sleep(_TICK_SECONDS)

    def _sample(self, elapsed: float, load: Load) -> Sample:
        values = database_values(self._stack.url)
        for instance in self._stack.instances.values():
            if not instance.is_victim:
                values |= process_values(instance.name, instance.tree())
        latencies = load.latencies_ms()
        if latencies:
            values["load post_p50_ms"] = percentile(latencies, 0.5)
            values["load post_p99_ms"] = percentile(latencies, 0.99)
        return Sample(round(elapsed, 1), values, self._state.pieces)

    def _heaps(self, elapsed: float) -> Sample:
        values: dict[str, float] = {}
        for instance in self._stack.instances.values():
            values |= heap_values(instance.name, instance.tree())
        return Sample(round(elapsed, 1), values, self._state.pieces)

    def _inject(self, planned: list[PlannedFault]) -> None:
        """Inject the faults one after another, on a slow machine later than planned. An error ends the run."""
        try:
            if self._state.injected and self._state.injected[-1].kind == _RESUME:
                self._end_resume()
            for fault in planned:
                if self._over.wait(max(0.0, fault.at_seconds - self._elapsed())):
                    return
                self._inject_one(fault)
        except BaseException as error:
            self._failure = error

    def _inject_one(self, fault: PlannedFault) -> None:
        began = self._elapsed()
        say(f"{began:.0f} s: {fault.kind}")
        self._state.injected.append(InjectedFault(fault.kind, _INTERRUPTED, began, math.inf))
        target = FAULTS[fault.kind][1](self._stack, fault.choice)
        self._state.injected[-1] = InjectedFault(fault.kind, target, began, self._elapsed())
        say(f"{self._elapsed():.0f} s: end of {fault.kind}: {target}")

    def _end_resume(self) -> None:
        """End the fault that represents the interruption, once every job has handled a batch, because the start of the
        JVMs delays messages beyond the audit's grace period."""
        self._stack.wait_for_jobs()
        self._state.injected[-1] = replace(self._state.injected[-1], ended=self._elapsed())

    def _judge(self, outcome: report.Outcome, watch: LogWatch) -> None:
        say("waiting for the last rows, and judging")
        entries = read_journal(self._folder / "journal.jsonl").values()
        evidence = Evidence(self._stack, [each for each in entries if each.acknowledged], self._state.seed)
        outcome.tiers = evidence.tiers()
        outcome.violations += judgement.tier_violations(outcome.tiers)
        expected = {
            series: judgement.expected_changes(EXPRESSION, values) for series, values in evidence.wave().items()
        }
        outcome.transitions = sum(map(len, expected.values()))
        accepted = self._wait_for_notifications(outcome.transitions, evidence)
        outcome.superseded = evidence.superseded()
        outcome.violations += judgement.alarm_violations(expected, evidence.transitions())
        outcome.notifications = len(accepted)
        outcome.repeats = sum(count > 1 for count in accepted.values())
        outcome.violations += judgement.notification_violations(outcome.transitions, len(accepted), outcome.superseded)
        rows = evidence.audit()
        outcome.audit_rows = len(rows)
        outcome.violations += judgement.audit_violations(rows)
        self._errors.append(*watch.errors(self._elapsed()))
        errors = cast("list[ErrorLine]", self._errors.read(ErrorLine))
        outcome.errors = len(errors)
        outcome.faults = self._state.injected
        outcome.violations += judgement.error_violations(errors, outcome.faults)
        samples = cast("list[Sample]", self._samples.read(Sample))
        warm_up_seconds = max(_LEAST_WARM_UP_SECONDS, self._state.minutes * 60 / 3)
        outcome.slopes = judgement.slopes(samples, warm_up_seconds=warm_up_seconds)
        outcome.violations += judgement.slope_violations(outcome.slopes)

    def _wait_for_notifications(self, count: int, evidence: Evidence) -> dict[str, int]:
        deadline = time.monotonic() + _NOTIFIED_SECONDS
        while True:
            accepted = accepted_notifications(self._received)
            if len(accepted) + evidence.superseded() >= count or time.monotonic() > deadline:
                return accepted
            time.sleep(1.0)


def main() -> int:
    arguments = _arguments()
    folder: Path = arguments.folder or arguments.report.with_suffix(".run")
    state_file = folder.absolute() / "state.json"
    if state_file.exists():
        state = RunState.read(state_file)
        say(f"resuming the run in {folder} at {state.elapsed:.0f} s")
    elif folder.exists() and any(folder.iterdir()):
        say(f"tools/endurance.py: {folder} belongs to a run that cannot be resumed: remove it, or name another report")
        return 2
    else:
        folder.mkdir(parents=True, exist_ok=True)
        seed = random.randrange(10**6) if arguments.replay is None else arguments.replay
        state = RunState(seed, arguments.minutes, arguments.rate, uuid.uuid4().hex, ports.free_ports(1)[0])
    run = EnduranceRun(state, folder.absolute(), tuple(arguments.faults))
    try:
        outcome, series = run.go(shlex.join(["python", *sys.argv]))
    except (DevBrokerError, ServiceFailed) as error:
        say(f"tools/endurance.py: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"interrupted; repeat the command to resume from {folder}")
        return 130
    except Exception:
        traceback.print_exc()
        say(f"the run did not complete; repeat the command to resume from {folder}")
        return 2
    report.write(arguments.report, outcome, series)
    for violation in outcome.violations:
        say(f"violation: {violation}")
    say(f"verdict: {'clean' if outcome.is_clean else f'{len(outcome.violations)} violations'}; {arguments.report}")
    state_file.unlink()
    if outcome.is_clean and not arguments.keep:
        run.release()
    else:
        say(f"logs and data are in {folder}; to remove them: umount -q {folder}/disk; rm -r {folder}")
    return 0 if outcome.is_clean else 1


def _arguments() -> argparse.Namespace:
    description, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=_minutes, required=True, metavar="N", help="minutes of load, 2 to 10000")
    parser.add_argument("--report", type=Path, required=True, metavar="FILE", help="the report in Markdown")
    parser.add_argument("--replay", type=int, metavar="SEED", help="repeat the faults and the load of this seed")
    parser.add_argument(
        "--rate", type=float, default=_RATE, metavar="N", help="metrics per second (default: %(default)g)"
    )
    parser.add_argument("--folder", type=Path, metavar="D", help="the folder of the state (default: FILE with .run)")
    parser.add_argument(
        "--faults", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="KIND", help="only these (default: all)"
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and data after a clean run")
    return parser.parse_args()


def _minutes(text: str) -> int:
    minutes = int(text)
    if not 2 <= minutes <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is out of range: use 2 to 10000 minutes")
    return minutes


def interrupted(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupted)
    sys.exit(main())
