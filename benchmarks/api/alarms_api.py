# SPDX-License-Identifier: Apache-2.0
"""How long the API takes to list, filter and count 100,000 alarms of a tenant, at 10 requests a second, 100 rows each.

The API is called in process, without a server: what a request takes is the API's own work and the database's. Each
alarm has a metric with three dimensions: the host, of which ten alarms are, one of five services, one of ten devices.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import sqlalchemy as sa
from falcon import testing

from benchmarks.databases import Databases
from benchmarks.job import percentile
from benchmarks.runner.table import show_table
from monasca_common.alarms.alarm_metrics import AlarmSeries, add_metrics
from monasca_common.alarms.database import AlarmsDatabase, new_id
from monasca_common.api.app import make_app
from monasca_common.api.settings import ApiSettings
from monasca_common.api.topic_producers import TopicProducers
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.sql import tables

_ALARMS = 100_000
_DEFINITIONS = 100
_A_STEP = 10_000
_PER_SECOND = 10
_REQUESTS = 200
_LIMIT_MS = 200
_PAGE = 100
_TENANT = "benchmark"
_STATES = ("OK", "OK", "OK", "OK", "UNDETERMINED", "ALARM")
_SERVICES = ("cinder", "glance", "neutron", "nova", "swift")
_SEVERITIES = ("LOW", "MEDIUM", "HIGH", "CRITICAL")
_LIST, _COUNT = "/v2.0/alarms", "/v2.0/alarms/count"
_KINDS = (
    ("list", _LIST, {}),
    ("list, newest first", _LIST, {"sort_by": "updated_timestamp desc"}),
    ("list by state", _LIST, {"state": "ALARM"}),
    ("list by severity", _LIST, {"severity": "HIGH"}),
    ("list by metric name", _LIST, {"metric_name": "metric.3"}),
    ("list by a host", _LIST, {"metric_dimensions": "hostname:host-00500"}),
    ("list by a service", _LIST, {"metric_dimensions": "service:nova"}),
    ("list by service and device", _LIST, {"metric_dimensions": "service:nova,device:dev5"}),
    ("list by a key alone", _LIST, {"metric_dimensions": "hostname"}),
    ("count", _COUNT, {}),
    ("count by a service", _COUNT, {"metric_dimensions": "service:nova"}),
    *((f"count grouped by {name}", _COUNT, {"group_by": name}) for name in ("state", "severity", "name")),
    *((f"count grouped by {name}", _COUNT, {"group_by": name}) for name in ("name,state", "metric_name")),
    *((f"count grouped by {name}", _COUNT, {"group_by": name}) for name in ("dimension_name", "dimension_value")),
    ("count grouped by dimension_name, dimension_value", _COUNT, {"group_by": "dimension_name,dimension_value"}),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api.alarms_api", description=__doc__)
    parser.add_argument("--requests", type=int, default=_REQUESTS, metavar="N", help="of each kind")
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write the table there as well")
    arguments = parser.parse_args()
    with Databases() as databases:
        taken = {driver: _measured(databases, driver, arguments.requests) for driver in ("sqlite", "postgresql")}
    rows, slow = [], []
    for name, _, _ in _KINDS:
        figures = [percentile(taken[driver][name], part) for driver in taken for part in (0.5, 0.99)]
        rows.append([name, *(f"{figure:.0f}" for figure in figures)])
        if max(figures) >= _LIMIT_MS:
            slow.append(name)
    show_table(["Request", "SQLite p50, ms", "p99, ms", "PostgreSQL p50, ms", "p99, ms"], rows, arguments.rst)
    if slow:
        print(f"not below {_LIMIT_MS} ms: {'; '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


def _measured(databases: Databases, driver: str, requests: int) -> dict[str, list[float]]:
    """Milliseconds of each request, by kind: the kinds take turns."""
    taken: dict[str, list[float]] = {name: [] for name, _, _ in _KINDS}
    with databases.new(driver) as url, MemoryKafka() as kafka:
        settings = StorageSettings(driver, url)
        database, reader, producer = AlarmsDatabase(settings), open_storage(settings).open_reader(), kafka.producer()
        _fill(database, url)
        api = ApiSettings(auth_strategy="noauth", access_log="off")
        app = make_app(api, TopicProducers(lambda _: producer, api), reader, now=time.time, alarms_database=database)
        client = testing.TestClient(app, headers={"X-Project-Id": _TENANT})
        due = time.perf_counter()
        for turn in range(requests + 1):
            for name, path, query in _KINDS:
                began = time.perf_counter()
                answer = client.simulate_get(path, query_string=urlencode({**query, "limit": _PAGE}))
                now = time.perf_counter()
                if answer.status_code != 200:
                    raise RuntimeError(f"{name}: {answer.text}")
                if turn:  # the first is without a connection
                    taken[name].append((now - began) * 1e3)
                due += 1 / _PER_SECOND
                time.sleep(max(0.0, due - now))
        producer.close(0.0)
        reader.close()
        database.close()
    return taken


def _fill(database: AlarmsDatabase, url: str) -> None:
    definitions = [new_id() for _ in range(_DEFINITIONS)]
    rows = [_definition(number, own_id) for number, own_id in enumerate(definitions)]
    database.write(lambda connection: connection.execute(tables.alarm_definition.insert(), rows))
    for start in range(0, _ALARMS, _A_STEP):
        numbers = range(start, start + _A_STEP)
        ids = [new_id() for _ in numbers]

        def work(connection: sa.Connection, ids: list[str] = ids, numbers: range = numbers) -> None:
            rows = [_alarm(n, own, definitions[n % _DEFINITIONS]) for n, own in zip(numbers, ids, strict=True)]
            connection.execute(tables.alarm.insert(), rows)
            add_metrics(connection, [_series(n, own) for n, own in zip(numbers, ids, strict=True)])

        database.write(work)
    if url.startswith("postgresql"):
        # Its autovacuum would do so a minute later, in the middle of what is measured.
        engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text("VACUUM ANALYZE"))
        engine.dispose()


def _definition(number: int, own_id: str) -> dict[str, object]:
    texts = {"id": own_id, "tenant": _TENANT, "name": f"definition {number}", "description": ""}
    switches = {"deterministic": False, "actions_enabled": True, "match_by": ["hostname", "device"]}
    versions = {"created": number, "updated": number, "version": 1}
    severity = _SEVERITIES[number % len(_SEVERITIES)]
    return {**texts, **switches, **versions, "expression": f"max(metric.{number % 10}) > 0", "severity": severity}


def _alarm(number: int, own_id: str, definition_id: str) -> dict[str, object]:
    match = {"match_key": number.to_bytes(16, "big"), "match_values": [f"host-{number // 10:05}", f"dev{number % 10}"]}
    times = dict.fromkeys(("created", "updated", "state_updated"), number)
    keys = {"id": own_id, "tenant": _TENANT, "definition_id": definition_id}
    state = _STATES[number % len(_STATES)]
    return {**keys, **match, **times, "state": state, "lifecycle_state": None, "link": None, "version": 1}


def _series(number: int, alarm_id: str) -> AlarmSeries:
    service = _SERVICES[number // 10 % len(_SERVICES)]
    dimensions = {"hostname": f"host-{number // 10:05}", "service": service, "device": f"dev{number % 10}"}
    return AlarmSeries(alarm_id, number.to_bytes(16, "big"), _TENANT, f"metric.{number % 10}", dimensions)


if __name__ == "__main__":
    sys.exit(main())
