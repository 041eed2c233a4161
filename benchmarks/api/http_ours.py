# SPDX-License-Identifier: Apache-2.0
"""The API as it is served: every metric validated, every outcome known, ids in the headers."""

from __future__ import annotations

import os
import sys
import tempfile

from benchmarks.api.http_server import IN_FLIGHT, LINGER_MS, free_port, measure
from benchmarks.job import Figures, Job, main


def run(job: Job) -> Figures:
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as configuration:
        configuration.write(
            f"[kafka]\nbootstrap_servers = {job.servers}\nlinger_ms = {LINGER_MS}\n"
            f"[api]\nauth_strategy = noauth\nport = {port}\nmax_in_flight = {IN_FLIGHT}\nmetrics_topic = {job.topic}\n"
        )
        configuration.flush()
        command = [sys.executable, "-m", "monasca_common.cli.main", "api", "--config-file", configuration.name]
        return measure(job, command, port, dict(os.environ))


if __name__ == "__main__":
    main(run)
