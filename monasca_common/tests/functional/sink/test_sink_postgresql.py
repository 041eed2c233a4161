# SPDX-License-Identifier: Apache-2.0
"""The sink's handler over PostgreSQL, without Kafka."""

import json

import psycopg

from monasca_common.kafka.errors import RetryLater
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.tables.steps import table_steps
from monasca_common.tests.functional.postgresql import SharedPostgresql
from monasca_common.tests.unit.sink.sink_case import SinkTestCase, batch, message

_TABLE = '[{0}]\ntopic = "{0}"\nmode = "upsert"\nkey = ["n"]\n[{0}.columns]\nn = "integer"\n{0} = "text"\n'

_ORDERS = """\
[orders]
topic = "orders"
key = ["id"]
[orders.columns]
id = "integer"

[lines]
topic = "orders"
each = "value.lines"
key = ["id", "line"]
[lines.columns]
id = {type = "integer", from = "value.id"}
line = {type = "integer", from = "index"}
article = "text"
"""


class SinkPostgresqlTest(SinkTestCase):
    def use_database(self, name):
        self.url = self.useFixture(SharedPostgresql()).url
        self.settings = StorageSettings("postgresql", self.url, write_timeout_seconds=10.0)
        self.storage = open_storage(self.settings)
        self.storage.upgrade()

    def execute(self, statement):
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def upsert(self, table, text, first):
        value = b'{"n": 1, "%s": "%s"}' % (table.encode(), text.encode())
        self.assertEqual({}, self.process(batch(table, [message(value)], first=first)))

    def test_topics_share_a_connection(self):
        self.open(_TABLE.format("one") + _TABLE.format("two"))
        for number in range(2):
            self.upsert("one", f"a{number}", number)
            self.upsert("two", f"b{number}", number)
        self.assertEqual([("a1", "b1")], self.execute("SELECT one, two FROM one JOIN two USING (n)"))

    def test_numbers_are_stored_without_loss(self):
        text = '[one]\ntopic = "one"\nmode = "upsert"\nkey = ["n"]\n[one.columns]\nn = "integer"\none = "double"\n'
        self.open(text)
        numbers = {-(2**63): 5e-324, -1: -1.7976931348623157e308, 0: -0.1 - 0.2, 2**63 - 1: 123456789.123456789}
        values = [json.dumps({"n": n, "one": number}).encode() for n, number in numbers.items()]
        self.assertEqual({}, self.process(batch("one", [message(each) for each in values])))
        self.assertEqual(list(numbers.items()), self.execute("SELECT n, one FROM one ORDER BY n"))

    def findings(self, definition, *statements, columns=""):
        """Return how a table ``one (n …)`` differs from its mapping, and drop it."""
        self.execute(f"CREATE TABLE one ({definition})")
        for statement in statements:
            self.execute(statement)
        steps = table_steps(self.settings, self.mapping(_TABLE.format("one") + columns))
        self.execute("DROP TABLE one CASCADE")
        return [step.finding for step in steps]

    def test_a_table_with_a_percent_sign_in_its_name_is_compared(self):
        tables = self.mapping('["a%b"]\ntopic = "t"\nkey = ["n%"]\n["a%b".columns]\n"n%" = "integer"\n')
        self.assertEqual(
            ["does not exist"], [step.finding for step in table_steps(self.settings, tables, execute=True)]
        )
        self.assertEqual([], table_steps(self.settings, tables))

    def test_unusable_unique_indexes_are_refused(self):
        rule = "has no primary key or unique index of exactly the columns n except one that {}: create one"
        partial = "CREATE UNIQUE INDEX ON one (n) WHERE n > 5"
        self.assertEqual([rule.format("is partial")], self.findings("n BIGINT, one TEXT", partial))
        whole = "CREATE UNIQUE INDEX ON one (n) INCLUDE (one)"
        self.assertEqual([], self.findings("n BIGINT, one TEXT", partial, whole))
        self.assertEqual([rule.format("is deferrable")], self.findings("n BIGINT PRIMARY KEY DEFERRABLE, one TEXT"))
        self.assertEqual(
            ["has no primary key or unique index of exactly the columns n: create one"],
            self.findings("n BIGINT, one TEXT", "CREATE UNIQUE INDEX ON one ((n + 1))"),
        )

    def test_keys_that_the_database_compares_differently_are_refused(self):
        self.execute("CREATE COLLATION anycase (locale = 'C')")
        # The same as CREATE COLLATION with deterministic = false, which needs a library that not every server has.
        self.execute("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'anycase'")
        text = '[one]\ntopic = "one"\nmode = "upsert"\nkey = ["n"]\n[one.columns]\nn = "{}"\n'
        for kind, definition, finding in (
            ("text", "n TEXT COLLATE anycase PRIMARY KEY", "except one that has the collation anycase: create one"),
            ("text", "n CHAR(5) PRIMARY KEY", "of type CHAR(5), which makes different keys equal: use TEXT"),
            ("timestamp", "n TIMESTAMP(0) PRIMARY KEY", "which makes different keys equal"),
        ):
            with self.subTest(definition):
                self.execute(f"CREATE TABLE one ({definition})")
                (step,) = table_steps(self.settings, self.mapping(text.format(kind)))
                self.assertIn(finding, step.finding)
                self.execute("DROP TABLE one")
        self.execute("CREATE TABLE one (n VARCHAR(9) PRIMARY KEY)")
        self.assertEqual([], table_steps(self.settings, self.mapping(text.format("text"))))

    def test_a_column_that_rounds_exact_numbers_is_refused(self):
        for kind, stores in (("DOUBLE PRECISION", False), ("REAL", False), ("NUMERIC", True), ("TEXT", True)):
            found = self.findings(f"n BIGINT PRIMARY KEY, one TEXT, price {kind}", columns='price = "numeric"\n')
            rule = f"has column 'price' of type {kind}, which does not store numeric: change the type in the mapping"
            self.assertEqual([] if stores else [rule], found)

    def test_views_and_generated_columns_are_refused(self):
        generated = "n BIGINT PRIMARY KEY, one TEXT, twice BIGINT NOT NULL GENERATED ALWAYS AS (2 * n) STORED"
        more = "id BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY"
        self.assertEqual([], self.findings(f"{generated}, {more}"))
        rule = "has column '{}' that the database generates: remove it from the mapping"
        self.assertEqual(
            [rule.format("twice"), rule.format("id")],
            self.findings(f"{generated}, {more}", columns='twice = "integer"\nid = "integer"\n'),
        )
        self.execute("CREATE VIEW one AS SELECT 1 AS n, 'a' AS one")
        (step,) = table_steps(self.settings, self.mapping(_TABLE.format("one")))
        self.assertEqual("is a view or a foreign table: name a table", step.finding)

    def test_a_row_that_breaks_a_deferred_constraint_becomes_a_dead_letter(self):
        self.open(_TABLE.format("one"), create=False)
        self.execute("CREATE TABLE known (n BIGINT PRIMARY KEY); INSERT INTO known VALUES (1)")
        self.execute("CREATE TABLE one (n BIGINT PRIMARY KEY REFERENCES known DEFERRABLE INITIALLY DEFERRED, one TEXT)")
        letters = self.process(batch("one", [message(b'{"n": 1}'), message(b'{"n": 2}')]))
        self.assertEqual({1}, letters.keys())
        self.assertIn("violates foreign key constraint", letters[1])
        self.assertEqual([(1,)], self.execute("SELECT n FROM one"))

    def test_a_refused_row_does_not_refuse_rows_that_refer_to_others_of_the_batch(self):
        self.open(_ORDERS, create=False)
        self.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY CHECK (id < 100))")
        self.execute(
            "CREATE TABLE lines (id BIGINT REFERENCES orders, line BIGINT, article TEXT, PRIMARY KEY (id, line))"
        )
        value = b'{"id": %d, "lines": [{"article": "bolt"}, {"article": "nut"}]}'
        letters = self.process(batch("orders", [message(value % number) for number in (1, 100, 2, 3)]))
        self.assertEqual({1}, letters.keys())
        self.assertIn("violates check constraint", letters[1])
        lines = self.execute("SELECT id, count(*) FROM lines GROUP BY id ORDER BY id")
        self.assertEqual([(1, 2), (2, 2), (3, 2)], lines)

    def test_keys_that_become_equal_in_the_database_do_not_block_a_batch(self):
        text = '[one]\ntopic = "one"\nmode = "upsert"\nkey = ["n"]\n[one.columns]\nn = "text"\none = "text"\n'
        self.open(text, create=False)
        self.execute("CREATE TABLE one (n VARCHAR(1) PRIMARY KEY, one TEXT)")
        letters = self.process(batch("one", [message(b'{"n": "a"}'), message(b'{"n": "a  "}')]))
        self.assertEqual(1, len(letters))
        self.assertEqual([("a",)], self.execute("SELECT n FROM one"))

    def test_a_column_can_change_its_type_while_the_sink_runs(self):
        self.open(_TABLE.format("one"), create=False)
        self.execute("CREATE TABLE one (n BIGINT PRIMARY KEY, one VARCHAR(2))")
        for number in range(2):
            self.upsert("one", "a", number)
        self.execute("ALTER TABLE one ALTER one TYPE TEXT")
        self.upsert("one", "longer", 2)
        self.assertEqual([("longer",)], self.execute("SELECT one FROM one"))

    def test_a_table_that_loses_the_unique_index_of_its_key_waits(self):
        self.open(_TABLE.format("one"))
        self.upsert("one", "a", 0)
        self.execute("ALTER TABLE one DROP CONSTRAINT one_pkey")
        self.assertRaises(RetryLater, self.handler, batch("one", [message(b'{"n": 1, "one": "b"}')], first=1))
        self.execute("ALTER TABLE one ADD PRIMARY KEY (n)")
        self.upsert("one", "b", 1)
        self.assertEqual([(1, "b")], self.execute("SELECT n, one FROM one"))
