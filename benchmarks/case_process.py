# SPDX-License-Identifier: Apache-2.0
"""Runs a case in its own process: ``python -m benchmarks.case_process MODULE JOB`` prints its figures as JSON."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.job import Figures, Job

_ROOT = Path(__file__).parent.parent
_CASE_SECONDS = 900
_SHOWN_LINES = 5


class CaseFailed(Exception):
    """A case ended with an error, or records are missing."""


def run_case(module: str, job: Job) -> Figures:
    """``module``: such as "messaging.send_ours". Raises `CaseFailed`, or `subprocess.TimeoutExpired`."""
    command = [sys.executable, "-m", "benchmarks.case_process", module, json.dumps(asdict(job))]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_CASE_SECONDS, check=False)
    if done.returncode != 0:
        tail = " | ".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
        raise CaseFailed(f"{module}: exit status {done.returncode}: {tail}")
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    module, job = sys.argv[1:]
    print(json.dumps(asdict(importlib.import_module(f"benchmarks.{module}").run(Job(**json.loads(job))))))


if __name__ == "__main__":
    main()
