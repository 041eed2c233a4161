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
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from benchmarks.api.http_load import Load, send
from benchmarks.formats import metrics_registry
from benchmarks.job import Figures, Job
from benchmarks.librdkafka import producer_options
from benchmarks.processes import cpu_seconds, running, wait_for
from monasca_common.devbroker.ports import HOST, free_ports
from monasca_common.models.rows import Measurement
from monasca_common.models.series import Series
from monasca_common.models.write_request import encoded_labels, encoded_row

Metrics = list[dict[str, Any]]

_LINGER_MS = 5
_IN_FLIGHT = 64
_THREADS = _IN_FLIGHT + 8
_START_SECONDS = 60.0
_WARM_REQUESTS = 200
_ANY_SERIES = Series(b"", "", "", "", {})

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
    [port] = free_ports(1)
    if "-bare-" in job.case:
        gunicorn = f"gunicorn --no-control-socket --worker-class gthread --keep-alive 75 --threads {_THREADS}"
        command = [*gunicorn.split(), "--bind", f"{HOST}:{port}", "benchmarks.api.bare_api:application()"]
        options = {**producer_options(job), "linger.ms": _LINGER_MS}
        return _measure(job, port, command, BENCHMARK_OPTIONS=json.dumps(options), BENCHMARK_TOPIC=job.topic)
    text = _CONFIGURATION.format(job=job, port=port, linger_ms=_LINGER_MS, in_flight=_IN_FLIGHT)
    with contextlib.ExitStack() as stack:
        if job.case.endswith("-avro"):
            settings, _ = stack.enter_context(metrics_registry())
            text += _AVRO.format(url=settings.url)
        configuration = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".conf"))
        configuration.write(text)
        configuration.flush()
        return _measure(job, port, ["monasca_common.cli.main", "api", "--config-file", configuration.name])


def _measure(job: Job, port: int, command: Sequence[str], **variables: str) -> Figures:
    """``command``: a module and its arguments that serve on ``port``. Each request has ``bulk`` metrics of the job."""
    content = _CONTENTS.get(job.case.partition("-")[0], _JSON)
    # A repeated sample has the same id and is not sent while it is in flight, so each connection has its own samples.
    turns = range(2 * job.threads if content.has_ids else 1)
    bodies = [content.encode([_metric(number, turn) for number in range(job.bulk)]) for turn in turns]
    requests = job.messages // job.bulk
    load = Load(port, content.path, content.headers, bodies, job.threads, requests)
    serving = running([sys.executable, "-m", *command], {**os.environ, **variables})
    with serving as server, ProcessPoolExecutor(1, get_context("spawn")) as client:
        wait_for(server, lambda: _accepts(port), _START_SECONDS)
        client.submit(send, replace(load, requests=_WARM_REQUESTS)).result()
        before = cpu_seconds(server.pid)
        seconds = client.submit(send, load).result()
        used = cpu_seconds(server.pid) - before
    return Figures(requests * job.bulk, seconds, used, written=(requests + _WARM_REQUESTS) * job.bulk)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port)).close()
    except OSError:
        return False
    return True


def _metric(number: int, turn: int) -> dict[str, Any]:
    return {
        "name": f"cpu.user_perc.{number % 10}",
        "dimensions": {"hostname": f"compute-{number:03}.example.org", "service": "nova", "component": "agent"},
        "timestamp": int(time.time() * 1000) - turn * 1000,
        "value": round(number * 0.61803 % 100, 3),
        "value_meta": None,
    }


def _json(metrics: Metrics) -> bytes:
    return json.dumps(metrics).encode()


def _write_request(metrics: Metrics) -> bytes:
    import cramjam

    fields = []
    for each in metrics:
        labels = encoded_labels({"__name__": each["name"], **each["dimensions"]})
        fields.append(encoded_row(labels, Measurement(_ANY_SERIES, each["timestamp"], each["value"], None, 0)))
    return bytes(cramjam.snappy.compress_raw(b"".join(fields)))


def _otlp(metrics: Metrics) -> bytes:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest()
    of_scope = request.resource_metrics.add().scope_metrics.add()
    for each in metrics:
        gauge = of_scope.metrics.add(name=each["name"]).gauge
        point = gauge.data_points.add(time_unix_nano=each["timestamp"] * 1_000_000, as_double=each["value"])
        for name, value in each["dimensions"].items():
            point.attributes.add(key=name).value.string_value = value
    return request.SerializeToString()


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of requests. ``has_ids``: whether the API derives message ids from the metrics."""

    path: str
    headers: dict[str, str]
    encode: Callable[[Metrics], bytes]
    has_ids: bool


_PROTOBUF = {"Content-Type": "application/x-protobuf"}
_JSON = _Content("/v2.0/metrics", {"Content-Type": "application/json"}, _json, has_ids=False)
_CONTENTS = {
    "prometheus": _Content("/api/v1/write", {**_PROTOBUF, "Content-Encoding": "snappy"}, _write_request, has_ids=True),
    "otlp": _Content("/v1/metrics", _PROTOBUF, _otlp, has_ids=True),
}
