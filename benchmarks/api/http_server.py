# SPDX-License-Identifier: Apache-2.0
"""One server process and one load process; the same for both servers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.api.http_load import Load
from benchmarks.job import Figures, Job
from benchmarks.librdkafka import versions
from benchmarks.process_tree import cpu_seconds

LINGER_MS = 5
IN_FLIGHT = 64
THREADS = IN_FLIGHT + 8
PATH = "/v2.0/metrics"
_SECONDS = 60.0
_WARM_REQUESTS = 200


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def measure(job: Job, command: Sequence[str], port: int, environment: dict[str, str]) -> Figures:
    """``command`` serves on ``port``; the job's ``bulk`` metrics go into each request."""
    body = json.dumps([_metric(number) for number in range(job.bulk)])
    requests = job.messages // job.bulk
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until_listening(server, port)
            serve(Load(port, PATH, body, job.threads, _WARM_REQUESTS))
            before = cpu_seconds(server.pid)
            seconds = serve(Load(port, PATH, body, job.threads, requests))
            used = cpu_seconds(server.pid) - before
        finally:
            server.terminate()
            server.wait(_SECONDS)
    return Figures(
        requests * job.bulk,
        seconds,
        used,
        written=(requests + _WARM_REQUESTS) * job.bulk,
        versions=versions(),
    )


def _metric(number: int) -> dict[str, Any]:
    return {
        "name": f"cpu.user_perc.{number % 10}",
        "dimensions": {"hostname": f"compute-{number:03}.example.org", "service": "nova", "component": "agent"},
        "timestamp": int(time.time() * 1000) + number,
        "value": round(number * 0.61803 % 100, 3),
        "value_meta": None,
    }


def serve(load: Load) -> float:
    command = [sys.executable, "-m", "benchmarks.api.http_load", json.dumps(asdict(load))]
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent.parent, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout)


def wait_until_listening(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the server does not start")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
