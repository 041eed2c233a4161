# SPDX-License-Identifier: Apache-2.0
"""The base of the sink's functional tests: the command with a real Kafka, and a database with three tables.

``facts`` receives each message once; ``copies`` is upserted, and a trigger counts each change in ``applied``, so that a
row written twice is visible; ``states`` follows the keys of a second topic, with deletions.
"""

import json

import sqlalchemy as sa

from monasca_common.kafka.message import Record
from monasca_common.sink.mapping import read_mapping
from monasca_common.storage import StorageSettings
from monasca_common.storage.tables.steps import table_steps
from monasca_common.tests.checker import check
from monasca_common.tests.functional.persister.persister_case import PARTITIONS, SECONDS, PersisterCase

_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
session_timeout_seconds = {session}
linger_ms = 0
[storage]
driver = {driver}
write_timeout_seconds = 2
[database]
connection = {url}
[sink]
mapping_file = {mapping}
status_port = {port}
group_id = {group}
batch_size = {batch_size}
max_wait_time_seconds = 0.01
{others}
"""
MAPPING = """\
[facts]
topic = "{topic}"
[facts.columns]
n = "integer"

[copies]
topic = "{topic}"
mode = "upsert"
key = ["n"]
[copies.columns]
n = {{type = "integer"}}
text = "text"
place = {{type = "integer", from = "offset"}}

[states]
topic = "{states}"
mode = "delete-on-tombstone"
key = ["name"]
[states.columns]
name = {{type = "text", from = "key"}}
n = "integer"
"""
_TRIGGERS = {
    "sqlite": (
        "CREATE TRIGGER inserted AFTER INSERT ON copies BEGIN INSERT INTO applied VALUES (NEW.n); END",
        "CREATE TRIGGER updated AFTER UPDATE ON copies BEGIN INSERT INTO applied VALUES (NEW.n); END",
    ),
    "postgresql": (
        """CREATE FUNCTION note_applied() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO applied VALUES (NEW.n); RETURN NEW; END $$""",
        "CREATE TRIGGER noted AFTER INSERT OR UPDATE ON copies FOR EACH ROW EXECUTE FUNCTION note_applied()",
    ),
}
KEYS = 7


class SinkCase(PersisterCase):
    command = ("sink", "run")

    def setUp(self):
        super().setUp()
        self.states_topic = self.fixture.topic(PARTITIONS)
        self.cluster.create_topic(f"{self.states_topic}.dlq", 1)
        self.states = {}
        self.mapping = self.folder / "mapping.toml"
        self.mapping.write_text(MAPPING.format(topic=self.topic, states=self.states_topic))
        table_steps(StorageSettings(self.database, self.url), read_mapping(self.mapping), execute=True)

    def drop_key(self):
        """Count each change, so that a row written twice is visible."""
        self.execute("CREATE TABLE applied (n BIGINT)")
        for statement in _TRIGGERS[self.database]:
            with self.engine.begin() as connection:
                connection.exec_driver_sql(statement)

    def rows(self):
        return self.column("SELECT n FROM applied")

    def column(self, statement):
        with self.engine.connect() as connection:
            return list(connection.execute(sa.text(statement)).scalars())

    def publish(self, numbers, *, bad=(), partition=None):
        super().publish(numbers, bad=bad, partition=partition)
        records = []
        for number in numbers:
            name = f"key-{number % KEYS}"
            # Every fifth message deletes its row.
            value = None if number % 5 == 4 else json.dumps({"n": number}).encode()
            records.append(Record(value, key=name.encode(), partition=number % KEYS % PARTITIONS))
            self.states[name] = None if value is None else number
        self.producer.publish(self.states_topic, records, timeout=SECONDS).raise_for_undelivered()

    def metric(self, number, **facts):
        return json.dumps({"n": number, "text": f"a\tb\n\\{number}"}).encode()

    def verdict(self):
        verdict = check(self.outcomes, self.rows(), [number for number, _, _ in self.dead_letters()])
        self.assertEqual(sorted(set(self.rows())), sorted(self.column("SELECT n FROM facts")))
        self.assertEqual(sorted(set(self.rows())), sorted(self.column("SELECT n FROM copies")))
        return verdict

    def assert_states(self):
        with self.engine.connect() as connection:
            found = dict(connection.execute(sa.text("SELECT name, n FROM states")).all())
        self.assertEqual({name: number for name, number in self.states.items() if number is not None}, found)

    def configured(self, port, *, batch_size, metrics, others):
        return _CONFIGURATION.format(
            servers=self.servers,
            driver=self.database,
            url=self.url,
            mapping=self.mapping,
            port=port,
            group=self.group,
            batch_size=batch_size,
            session=self.session_seconds,
            others=metrics,
        )

    def topics(self):
        return [[self.topic, PARTITIONS], [self.states_topic, PARTITIONS]]

    def is_through(self, sink):
        worker = sink.worker()
        return worker.get("state") == "running" and worker["partitions"] == 2 * PARTITIONS and worker["lag"] == 0
