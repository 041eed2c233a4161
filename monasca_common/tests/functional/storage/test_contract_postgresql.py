# SPDX-License-Identifier: Apache-2.0
"""The contract of storage with a real PostgreSQL."""

import contextlib
import re
import time

import psycopg
import sqlalchemy as sa
from fixtures import MonkeyPatch
from oslotest import base
from sqlalchemy.ext.compiler import compiles

from monasca_common.storage.errors import QueryTimeout, SchemaMismatch, StorageError, StorageUnavailable
from monasca_common.storage.positions import POSTGRESQL
from monasca_common.storage.reader import AlarmFilter, PageOf, Position, SeriesFilter, Span
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.connections import ReadConnections
from monasca_common.storage.sql.queries import Queries
from monasca_common.storage.sql.reader import SqlReader
from monasca_common.tests.contracts import storage as testing
from monasca_common.tests.functional.postgresql import SharedPostgresql
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.postgresql_server import PostgresqlServer
from monasca_common.tests.unit.storage.sqlite.test_reads import ReadsContract
from monasca_common.tests.unit.storage.test_positions import GROUP, ManyPartitions


@periodic(
    "second dialect; SQLite passes the same contract in the unit tests; the normal run contains PostgresqlFenceTest"
)
class PostgresqlWriteTest(testing.WriteContract, PostgresqlTestCase):
    pass


class PostgresqlFenceTest(testing.FenceContract, PostgresqlTestCase):
    pass


@periodic(
    "second dialect; SQLite passes the same contract in the unit tests; the normal run contains PostgresqlFenceTest"
)
class PostgresqlKeyTest(testing.KeyContract, PostgresqlTestCase):
    pass


@periodic(
    "second dialect; SQLite passes the same contract in the unit tests; the normal run contains PostgresqlFenceTest"
)
class PostgresqlRefusalTest(testing.RefusalContract, PostgresqlTestCase):
    pass


@periodic(
    "second dialect; SQLite passes the same contract in the unit tests; the normal run contains PostgresqlFenceTest"
)
class PostgresqlResetTest(testing.ResetContract, PostgresqlTestCase):
    pass


@periodic(
    "second dialect; SQLite passes the same contract in the unit tests; the normal run contains PostgresqlFenceTest"
)
class PostgresqlOperationTest(testing.OperationContract, PostgresqlTestCase):
    pass


_DAY_MS = 86_400_000
_TIMEOUT_SECONDS = 2.0
_BUSY_SECONDS = 30.0  # extra time that a busy machine may need to cancel after the time-out
_DAYS = range(3)
_SERIES = 200_000
_TENANTS = 10
_NAMES = 100
_PAGE = PageOf(10_001)
_TENANT = SeriesFilter("tenant3")
_NAMED = SeriesFilter("tenant3", name="metric.7")
_TWO_DAYS = Span(0, 2 * _DAY_MS - 1)

# 2,000 series of a tenant and name are few, and 20,000 series of a tenant are many, so that both kinds of plan occur.

_FILL = (
    f"""INSERT INTO series SELECT substring(sha256(n::text::bytea) FOR 16), 'tenant' || mod(n, {_TENANTS}), 'region',
        'metric.' || mod(n / {_TENANTS}, {_NAMES}), jsonb_build_object('host', 'h' || (n / 1000), 'n', n::text)
        FROM generate_series(1, {_SERIES}) AS n""",
    f"""INSERT INTO measurements SELECT id, day::bigint * {_DAY_MS} + 1000, 1, NULL, 1
        FROM series, generate_series(0, {len(_DAYS) - 1}) AS day""",
    f"""INSERT INTO alarm_history SELECT mod(n, {len(_DAYS)})::bigint * {_DAY_MS} + n, n::text::bytea,
        'tenant' || mod(n, {_TENANTS}), 'alarm' || mod(n, 1000), 'd', 'n', 'OK', 'ALARM', 'LOW', '', NULL, NULL,
        '[{{"name": "m", "dimensions": {{"host": "h7"}}}}]', '[]' FROM generate_series(1, {_SERIES // 2}) AS n""",
)


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class PostgresqlReadsTest(ReadsContract, PostgresqlTestCase):
    pass


class _Explain(sa.Executable, sa.ClauseElement):
    inherit_cache = False

    def __init__(self, statement):
        self.statement = statement


@compiles(_Explain)
def _explain(element, compiler, **options):
    return "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, BUFFERS OFF, SUMMARY OFF) " + compiler.process(
        element.statement, **options
    )


@periodic("reads the plans of all queries; the normal run tests reads in BoundsTest")
class PlanTest(base.BaseTestCase):
    """A single test has all reads, because filling the tables takes ten seconds."""

    def test_no_read_scans_series_or_measurements_completely(self):
        engine = self.filled()
        queries = Queries("postgresql")
        with engine.connect() as connection:
            ids = [row.id for row in connection.execute(queries.series(_NAMED, _PAGE))]
            self.assertEqual(_SERIES // _TENANTS // _NAMES, len(ids))
            plans = {
                name: "\n".join(connection.execute(_Explain(statement)).scalars())
                for name, statement in self.statements(queries, ids).items()
            }
        for name, plan in plans.items():
            self.assertNotIn("Seq Scan", plan, f"{name}:\n{plan}")
        for name in (
            "one dimension",
            "several values of a dimension",
            "any value of a dimension",
            "a hundred dimensions",
        ):
            self.assertIn("Bitmap Index Scan on series_by_dimensions", plans[name])
        for name in ("a page of all", "a page between two times"):
            self.assertIn("Index Scan using series_by_tenant", plans[name])
            self.assertNotIn("Sort", plans[name], "the index has the order")
        for name in ("a name", "a name in a region"):
            self.assertRegex(plans[name], "series_by_name.*\n.*tenant.*AND.*name")
        for name in ("a name between two times", "names between two times"):
            self.assertRegex(plans[name], "SubPlan(.*\n)*.*Index Only Scan using measurements.*pkey")
        for name in plans.keys() - {"statistics to this day"}:
            self.assertNotRegex(plans[name], "on measurements_2", f"{name} reads a day that was not requested")

    @staticmethod
    def statements(queries, ids):
        between = {"start_ms": 0, "end_ms": _DAY_MS}
        apart = [[one] for one in ids]
        behind = Position(_DAY_MS // 2, ids[0])
        windows = {"span": _TWO_DAYS, "period_ms": 300_000, "limit": 10_001}
        return {
            "all": queries.series(_TENANT, _PAGE),
            "a page of all": queries.series(_TENANT, PageOf(101, after="80" * 16)),
            "a name": queries.series(_NAMED, _PAGE),
            "a name in a region": queries.series(SeriesFilter("tenant3", "region", "metric.7"), _PAGE),
            "one dimension": queries.series(SeriesFilter("tenant3", dimensions={"host": ("h7",)}), _PAGE),
            "several values of a dimension": queries.series(
                SeriesFilter("tenant3", dimensions={"host": ("h7", "h9")}), _PAGE
            ),
            "a hundred dimensions": queries.series(
                SeriesFilter("tenant3", dimensions={f"k{n}": ((), ("v",), ("v", "w"))[n % 3] for n in range(100)}),
                _PAGE,
            ),
            "any value of a dimension": queries.series(SeriesFilter("tenant3", dimensions={"rare": ()}), _PAGE),
            "a name between two times": queries.series(SeriesFilter("tenant3", name="metric.7", **between), _PAGE),
            "a page between two times": queries.series(SeriesFilter("tenant3", **between), PageOf(101)),
            "names": queries.names(_TENANT, _PAGE),
            "names between two times": queries.names(SeriesFilter("tenant3", **between), _PAGE),
            "dimension names": queries.dimension_names(_TENANT, _PAGE),
            "dimension names of a name": queries.dimension_names(_NAMED, _PAGE),
            "dimension values": queries.dimension_values(_TENANT, "host", _PAGE),
            "dimension values of a name": queries.dimension_values(_NAMED, "host", _PAGE),
            "measurements": queries.measurements_merged(ids[:1], _TWO_DAYS, limit=10_001, after=None),
            "merged": queries.measurements_merged(ids, _TWO_DAYS, limit=10_001, after=behind),
            "apart": queries.measurements_apart(ids, _TWO_DAYS, limit=10_001, after_ms=5),
            "statistics": queries.statistics(apart[:1], ["avg"], resume_ms=None, **windows),
            "statistics, merged": queries.statistics([ids], ["avg", "max"], resume_ms=_DAY_MS, **windows),
            "statistics, apart": queries.statistics(apart, ["avg", "count"], resume_ms=None, **windows),
            "statistics to this day": queries.statistics(
                apart, ["sum"], Span(0), period_ms=300_000, limit=101, resume_ms=None
            ),
            "alarms": queries.alarm_history(AlarmFilter("tenant3"), 101, (_DAY_MS, b"5")),
            "an alarm": queries.alarm_history(AlarmFilter("tenant3", alarm_id="alarm3"), 101, None),
            "alarms of a dimension": queries.alarm_history(
                AlarmFilter("tenant3", dimensions={"host": ("h7",)}), 101, None
            ),
        }

    def filled(self):
        url = self.useFixture(SharedPostgresql()).url
        engine = schema.engine(url)
        with engine.begin() as connection:
            schema.upgrade(connection)
            for table in ("measurements", "alarm_history"):
                for day in _DAYS:
                    connection.exec_driver_sql(
                        f"CREATE TABLE {table}_{day} PARTITION OF {table} "
                        f"FOR VALUES FROM ({day * _DAY_MS}) TO ({(day + 1) * _DAY_MS})"
                    )
            for statement in _FILL:
                connection.exec_driver_sql(statement)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
        return engine


def _run(statement):
    return lambda connection, _deadline: connection.exec_driver_sql(statement).scalar()


class BoundsTest(base.BaseTestCase):
    def connections(self, url, **changes):
        self.useFixture(MonkeyPatch("monasca_common.storage.sql.schema.check_database", lambda *_: None))  # no tables
        connections = ReadConnections(StorageSettings("postgresql", url, **changes))
        self.addCleanup(connections.close)
        return connections

    def test_a_query_that_takes_too_long_is_cancelled_and_its_connection_is_used_again(self):
        url = self.useFixture(SharedPostgresql()).url
        connections = self.connections(url, read_timeout_seconds=_TIMEOUT_SECONDS, read_connections=1)
        pid = connections.run(_run("SELECT pg_backend_pid()"))
        self.assertRaises(QueryTimeout, connections.run, _run("SELECT pg_sleep(60)"))
        self.assertEqual(pid, connections.run(_run("SELECT pg_backend_pid()")))

    def test_a_dead_connection_of_the_pool_is_replaced(self):
        shared = self.useFixture(SharedPostgresql())
        connections = self.connections(shared.url, read_connections=1)
        pid = connections.run(_run("SELECT pg_backend_pid()"))
        shared.server.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
        self.assertNotEqual(pid, connections.run(_run("SELECT pg_backend_pid()")))

    def test_a_reader_cannot_write(self):
        connections = self.connections(self.useFixture(SharedPostgresql()).url)
        error = self.assertRaises(StorageError, connections.run, _run("CREATE TABLE x (y int)"))
        self.assertIn("read-only", str(error))

    def test_a_database_without_tables_is_an_error_with_the_remedy(self):
        reader = SqlReader(StorageSettings("postgresql", self.useFixture(SharedPostgresql()).url))
        self.addCleanup(reader.close)
        error = self.assertRaises(SchemaMismatch, reader.names, _TENANT, _PAGE)
        self.assertIn("db upgrade", str(error))

    def test_a_frozen_or_stopped_server_delays_no_read_beyond_its_limit_and_is_used_again_later(self):
        server = self.enterContext(PostgresqlServer())
        connections = self.connections(server.url(), read_timeout_seconds=_TIMEOUT_SECONDS, read_connections=1)
        one = _run("SELECT 1")
        self.assertEqual(1, connections.run(one))

        server.freeze()
        self.assertLess(self.seconds_until_unavailable(connections, one), _BUSY_SECONDS)
        self.assertLess(
            self.seconds_until_unavailable(connections, one), _BUSY_SECONDS, "a new connection is not waited for either"
        )
        server.thaw()
        self.assertEqual(1, connections.run(one))

        server.kill()
        self.assertLess(self.seconds_until_unavailable(connections, one), _BUSY_SECONDS)
        server.restart()
        self.assertEqual(1, connections.run(one))

    def test_an_error_shows_no_password(self):
        url = re.sub("//", "//user:secret-word@", "postgresql://127.0.0.1:1/none")
        error = self.assertRaises(StorageUnavailable, self.connections(url).run, _run("SELECT 1"))
        self.assertNotIn("secret-word", str(error))

    def seconds_until_unavailable(self, connections, work):
        began = time.monotonic()
        self.assertRaises(StorageUnavailable, connections.run, work)
        return time.monotonic() - began


MOST_STATEMENTS = 20  # one statement per partition took 19 s and 54 s


class PsycopgPositionsTest(ManyPartitions, PostgresqlTestCase):
    dialect = POSTGRESQL

    @contextlib.contextmanager
    def transaction(self):
        with psycopg.connect(self.database.settings.connection.replace("+psycopg", "")) as connection:
            yield connection.execute

    def test_the_number_of_statements_does_not_depend_on_the_number_of_partitions(self):
        execute, executed = psycopg.Cursor.execute, []

        def counted(cursor, *arguments, **named):
            executed.append(arguments)
            return execute(cursor, *arguments, **named)

        writer = self.database.writer()
        # The client does not send one statement per partition in a loop either.
        self.useFixture(MonkeyPatch("psycopg.Cursor.executemany", self.fail))
        self.useFixture(MonkeyPatch("psycopg.Cursor.execute", counted))
        for call in (lambda: writer.begin(GROUP, self.many, self.ids), lambda: writer.next_offsets(GROUP, self.ids)):
            executed.clear()
            self.assertEqual(self.many, call())
            self.assertTrue(0 < len(executed) < MOST_STATEMENTS, len(executed))


@periodic("second driver; the normal run contains PsycopgPositionsTest")
class SqlAlchemyPositionsTest(ManyPartitions, PostgresqlTestCase):
    dialect = POSTGRESQL

    @contextlib.contextmanager
    def transaction(self):
        with schema.engine(self.database.settings.connection).begin() as connection:
            yield connection.exec_driver_sql
