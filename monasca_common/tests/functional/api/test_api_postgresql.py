# SPDX-License-Identifier: Apache-2.0
"""Definitions, alarms, notification methods and the size of responses in a real PostgreSQL."""

import json
import subprocess
import sys

import psycopg
import sqlalchemy as sa

from monasca_common.alarms import alarm_queries
from monasca_common.alarms.alarm_queries import GROUPS, SORTS, WhichAlarms
from monasca_common.alarms.database import Slice, Sort
from monasca_common.storage.sql import schema
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.api.resources.test_alarm_definitions import AlarmDefinitionsContract
from monasca_common.tests.unit.api.resources.test_alarms import AlarmsContract
from monasca_common.tests.unit.api.resources.test_notification_methods import NotificationMethodsContract
from monasca_common.tests.unit.api.resources.test_notifications import NotificationsContract
from monasca_common.tests.unit.api.resources.test_silences import SilencesContract
from monasca_common.tests.unit.api.test_answers import AnswersContract
from monasca_common.tests.waiting import PATIENCE_SECONDS


@periodic("second dialect; the normal run contains TestAlarmsInPostgresql")
class TestNotificationMethodsInPostgresql(NotificationMethodsContract, PostgresqlTestCase):
    pass


@periodic("second dialect; the normal run contains TestAlarmsInPostgresql")
class TestAlarmDefinitionsInPostgresql(AlarmDefinitionsContract, PostgresqlTestCase):
    pass


class TestAlarmsInPostgresql(AlarmsContract, PostgresqlTestCase):
    pass


@periodic("second dialect; the normal run contains TestAlarmsInPostgresql")
class TestSilencesInPostgresql(SilencesContract, PostgresqlTestCase):
    pass


@periodic("second dialect; the normal run contains TestAlarmsInPostgresql")
class TestNotificationsInPostgresql(NotificationsContract, PostgresqlTestCase):
    pass


_TENANTS = 200
_ALARMS = 100_000
_FILLED = """
INSERT INTO alarm_definition SELECT 'd' || i, 't' || i % {tenants}, 'd' || i, '', 'max(cpu) > 1', false, '[]',
    'LOW', true, 0, 0 FROM generate_series(0, 399) AS i;
INSERT INTO alarm SELECT md5(i::text), 't' || i % {tenants}, 'd' || i % 400, decode(md5(i::text), 'hex'), '[]',
    (ARRAY['OK', 'OK', 'OK', 'UNDETERMINED', 'ALARM'])[i / {tenants} % 5 + 1],
    'life ' || i % 97, 'link ' || i % 89, i, i, i, 0 FROM generate_series(1, {alarms}) AS i;
INSERT INTO alarm_metric SELECT id, match_key, tenant, 'cpu ' || created / {tenants} % 10, '{{}}' FROM alarm;
INSERT INTO alarm_dimension SELECT id, match_key, dimension, value, 'cpu ' || created / {tenants} % 10, tenant
    FROM alarm,
    LATERAL (VALUES ('host', 'h' || created), ('zone', 'z' || created / {tenants} % 20)) AS its (dimension, value)
"""


@periodic("checks plans of queries, which change only with indexes")
class TestIndexesInPostgresql(PostgresqlTestCase):
    """A single test has all queries, because filling the tables takes seconds. A tenant has 500 of 100,000 alarms."""

    def test_lists_and_counts_read_only_alarms_of_the_tenant(self):
        engine = schema.engine(self.database.settings.connection)
        with engine.begin() as connection:
            for statement in _FILLED.format(tenants=_TENANTS, alarms=_ALARMS).split(";"):
                connection.execute(sa.text(statement))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("VACUUM ANALYZE"))
            for name, statement in statements():
                compiled = statement.compile(engine, compile_kwargs={"literal_binds": True})
                plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {compiled}".replace("%%", "%")).scalars())
                for table in ("alarm", "alarm_metric", "alarm_dimension"):
                    self.assertNotIn(f"Seq Scan on {table} ", f"{plan} ", name)


def statements():
    filters = (
        {},
        {"definition_id": "d7"},
        {"states": ("ALARM",)},
        {"severities": ("LOW",)},
        {"lifecycle_state": "life 7"},
        {"link": "link 7"},
        {"state_updated_since_ms": _ALARMS - 100},
        {"metric_name": "cpu 3"},
        {"metric_name": "cpu 3", "dimensions": {"zone": ("z3",)}},
        {"dimensions": {"host": ("h7", "h207")}},
        {"dimensions": {"host": ()}},
        {"dimensions": {"host": ("h207",), "zone": ("z1",)}},
    )
    for changes in filters:
        which = WhichAlarms("t7", **changes)
        yield f"list {changes}", alarm_queries.alarms(which, (), Slice(100))
        yield f"count {changes}", alarm_queries.counts(which, (), Slice(1))
    for field in SORTS:
        yield f"sort {field}", alarm_queries.alarms(WhichAlarms("t7"), (Sort(field),), Slice(100))
    for group in GROUPS:
        yield f"group {group}", alarm_queries.counts(WhichAlarms("t7"), [group], Slice(100))


_MIB = 1024 * 1024
_LONG_SERIES = 400
_LONG_BYTES = 400_000  # dimensions as large as they could be before the limit: 160 MB in total

_FILL = f"""INSERT INTO series SELECT substring(sha256(n::text::bytea) FOR 16), 'tenant', 'region', 'long',
    jsonb_build_object('n', n::text, 'note', repeat('x', {_LONG_BYTES})) FROM generate_series(1, {_LONG_SERIES}) AS n"""
_READ = """
import json, re, sys
from falcon import testing
from monasca_common.api import paging
from monasca_common.api.app import make_app
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import ProducerPool
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.storage import open_storage
from monasca_common.storage.settings import StorageSettings

kafka = MemoryKafka()
kafka.setUp()
reader = open_storage(StorageSettings("postgresql", sys.argv[1])).open_reader()
settings = ApiSettings(auth_strategy="noauth")
paging.MAX_ANSWER_BYTES = int(sys.argv[2])
producers = ProducerPool(lambda _: kafka.producer())
client = testing.TestClient(make_app(settings, producers, reader))

def read(query):
    answer = client.simulate_get("/v2.0/metrics", query_string=query, headers={"X-Project-Id": "tenant"})
    return len(answer.content), len(answer.json["elements"])

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1])

read("name=none")
before = peak()
size, elements = read("name=long")
print(json.dumps([size, elements, peak() - before]))
reader.close()
kafka.cleanUp()
"""


@periodic("second dialect; the unit tests compare the responses from SQLite")
class TestAnswersFromPostgresql(AnswersContract, PostgresqlTestCase):
    pass


@periodic("a measurement of memory")
class TestMemory(PostgresqlTestCase):
    def test_memory_of_a_page_does_not_depend_on_the_number_of_stored_rows(self):
        url = self.database.settings.connection
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as session:
            session.execute(_FILL)
        command = [sys.executable, "-c", _READ, url, str(4 * _MIB)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        size, elements, grown = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((True, 10), (size <= 4 * _MIB + 1024, elements))
        self.assertLess(grown, _LONG_SERIES * _LONG_BYTES // 2)
