# SPDX-License-Identifier: Apache-2.0
"""Posts to the API, served by its command, or to `benchmarks.api.bare_api` under the same gunicorn with the same
producer options.

One process serves and one process posts.
"""

from __future__ import annotations

import contextlib
import json
import os
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
from benchmarks.formats import metrics_registry
from benchmarks.job import Figures, Job, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.process_tree import cpu_seconds

_LINGER_MS = 5
_IN_FLIGHT = 64
_THREADS = _IN_FLIGHT + 8
_PATH = "/v2.0/metrics"
_SECONDS = 60.0
_WARM_REQUESTS = 200


_CONFIGURATION = """\
[kafka]
bootstrap_servers = {job.servers}
linger_ms = {linger_ms}
[api]
auth_strategy = noauth
port = {port}
max_in_flight = {in_flight}
metrics_topic = {job.topic}
"""
_AVRO = """\
metrics_format = avro
[schema_registry]
url = {url}
auto_register = true
"""


def run(job: Job) -> Figures:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    if "-bare-" in job.case:
        gunicorn = f"gunicorn --no-control-socket --worker-class gthread --keep-alive 75 --threads {_THREADS}"
        command = [*gunicorn.split(), "--bind", f"127.0.0.1:{port}", "benchmarks.api.bare_api:application()"]
        options = {**producer_options(job), "linger.ms": _LINGER_MS}
        environment = {**os.environ, "BENCHMARK_OPTIONS": json.dumps(options), "BENCHMARK_TOPIC": job.topic}
        return _measure(job, command, port, environment)
    text = _CONFIGURATION.format(job=job, port=port, linger_ms=_LINGER_MS, in_flight=_IN_FLIGHT)
    with contextlib.ExitStack() as stack:
        if job.case.endswith("-avro"):
            settings, _ = stack.enter_context(metrics_registry())
            text += _AVRO.format(url=settings.url)
        configuration = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".conf"))
        configuration.write(text)
        configuration.flush()
        command = ["monasca_common.cli.main", "api", "--config-file", configuration.name]
        return _measure(job, command, port, dict(os.environ))


def _measure(job: Job, command: Sequence[str], port: int, environment: dict[str, str]) -> Figures:
    """``command``: serves on ``port``. Each request has ``bulk`` metrics of the job."""
    body = json.dumps([_metric(number) for number in range(job.bulk)])
    requests = job.messages // job.bulk
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=log, stderr=log)
        try:
            _wait_until_listening(server, port)
            _serve(Load(port, _PATH, body, job.threads, _WARM_REQUESTS))
            before = cpu_seconds(server.pid)
            seconds = _serve(Load(port, _PATH, body, job.threads, requests))
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


def _serve(load: Load) -> float:
    command = [sys.executable, "-m", "benchmarks.api.http_load", json.dumps(asdict(load))]
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent.parent, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout)


def _wait_until_listening(server: subprocess.Popen[bytes], port: int) -> None:
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


if __name__ == "__main__":
    main(run)
