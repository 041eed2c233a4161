# SPDX-License-Identifier: Apache-2.0
"""CPU time of WSGI servers for a post whose answer waits some milliseconds, as a post waits for Kafka.

``python -m benchmarks.api.web_servers gthread --messages 100`` prints one figure. Granian and waitress are no
dependencies of this package: install them to measure them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.api.http_load import Load
from benchmarks.api.http_server import PATH, THREADS, free_port, serve, wait_until_listening
from benchmarks.process_tree import cpu_seconds

_SECONDS_IN_KAFKA = 0.003
_CONNECTIONS = 16
_WARM_REQUESTS = 200
_ROOT = Path(__file__).parent.parent.parent
_APPLICATION = "benchmarks.api.web_servers:application"
_METRIC = {"name": "cpu.user_perc", "dimensions": {"hostname": "compute-001"}, "timestamp": 1, "value": 38.2}

SERVERS = {
    "gthread": f"gunicorn -k gthread --keep-alive 75 --threads {THREADS} -b 127.0.0.1:%d {_APPLICATION}",
    "granian": f"granian --interface wsgi --blocking-threads {THREADS} --host 127.0.0.1 --port %d {_APPLICATION}",
    "waitress": f"waitress --threads {THREADS} --listen 127.0.0.1:%d {_APPLICATION}",
}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    time.sleep(_SECONDS_IN_KAFKA)
    start_response("204 No Content", [])
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--messages", type=int, default=1, help="metrics in each post")
    parser.add_argument("--requests", type=int, default=5000)
    given = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", *(SERVERS[given.server] % port).split()]
    server = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_listening(server, port)
        body = json.dumps([_METRIC] * given.messages)
        serve(Load(port, PATH, body, _CONNECTIONS, _WARM_REQUESTS))
        before = cpu_seconds(server.pid)
        seconds = serve(Load(port, PATH, body, _CONNECTIONS, given.requests))
        used = cpu_seconds(server.pid) - before
    finally:
        server.terminate()
        server.wait()
    print(
        f"{given.server}: {used / given.requests * 1000:.3f} ms of CPU a post, {given.requests / seconds:.0f} posts/s"
    )


if __name__ == "__main__":
    main()
