# SPDX-License-Identifier: Apache-2.0
"""The sink's handler over PostgreSQL, without Kafka."""

import psycopg

from monasca_common.devbroker.fixtures import SharedPostgresql
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.unit.sink.sink_case import SinkTestCase, batch, message

_TABLE = '[{0}]\ntopic = "{0}"\nmode = "upsert"\nkey = ["n"]\n[{0}.columns]\nn = "integer"\n{0} = "text"\n'


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

    def test_a_column_whose_type_changes_while_the_sink_runs(self):
        self.open(_TABLE.format("one"), create=False)
        self.execute("CREATE TABLE one (n BIGINT PRIMARY KEY, one VARCHAR(2))")
        for number in range(2):
            self.upsert("one", "a", number)
        self.execute("ALTER TABLE one ALTER one TYPE TEXT")
        self.upsert("one", "longer", 2)
        self.assertEqual([("longer",)], self.execute("SELECT one FROM one"))
