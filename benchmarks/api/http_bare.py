# SPDX-License-Identifier: Apache-2.0
"""`benchmarks.api.bare_api` under the same gunicorn with the same threads, and the same options of the producer."""

from __future__ import annotations

import json
import os
import sys

from benchmarks.api.http_server import LINGER_MS, THREADS, free_port, measure
from benchmarks.job import Figures, Job, main
from benchmarks.librdkafka import producer_options


def run(job: Job) -> Figures:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--no-control-socket",
        "--worker-class",
        "gthread",
        "--keep-alive",
        "75",
    ]
    command += ["--threads", str(THREADS), "--bind", f"127.0.0.1:{port}", "benchmarks.api.bare_api:application()"]
    options = {**producer_options(job), "linger.ms": LINGER_MS}
    environment = {**os.environ, "BENCHMARK_OPTIONS": json.dumps(options), "BENCHMARK_TOPIC": job.topic}
    return measure(job, command, port, environment)


if __name__ == "__main__":
    main(run)
