# SPDX-License-Identifier: Apache-2.0
"""The sink's commands with a real Kafka. SIGKILL of a worker at each fail point: each message is applied exactly once,
and keys are correct. Of several writers of the same partitions, the stored offset permits one. For each guarantee, a
mutant without it must fail.
"""

import json
import subprocess
import sys

import sqlalchemy as sa

from monasca_common.kafka.message import Record
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.sink.mapping import read_mapping
from monasca_common.storage import StorageSettings
from monasca_common.storage.tables.steps import table_steps
from monasca_common.tests.functional.persister.persister_case import PARTITIONS, SECONDS, PersisterCase
from monasca_common.tests.functional.persister.test_persister_crash import CrashCase, ZombieCase
from monasca_common.tests.periodic import periodic

_SECTIONS = """\
[sink]
mapping_file = {folder}/mapping.toml
status_port = {port}
group_id = {group}
batch_size = {batch_size}
max_wait_time_seconds = 0.01
{metrics}
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
    """The command with three tables.

    ``facts`` receives each message once; ``copies`` is upserted, and a trigger counts each change in ``applied``, so
    that a row written twice is visible; ``states`` follows the keys of a second topic, with deletions.
    """

    command = ("sink", "run")
    sections = _SECTIONS

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
        verdict = super().verdict()
        self.assertEqual(sorted(set(self.rows())), sorted(self.column("SELECT n FROM facts")))
        self.assertEqual(sorted(set(self.rows())), sorted(self.column("SELECT n FROM copies")))
        return verdict

    def assert_states(self):
        with self.engine.connect() as connection:
            found = dict(connection.execute(sa.text("SELECT name, n FROM states")).all())
        self.assertEqual({name: number for name, number in self.states.items() if number is not None}, found)

    def topics(self):
        return [[self.topic, PARTITIONS], [self.states_topic, PARTITIONS]]


class TestSinkCommands(SinkCase):
    database = "sqlite"

    def setUp(self):
        super().setUp()
        self.configuration = self.folder / "sink.conf"
        self.configuration.write_text(self.configured(1))

    def run_command(self, *command):
        """Return the exit status, the rows and the text on standard error."""
        program = [sys.executable, "-m", "monasca_common.cli.main", "sink", *command, "-f", "json"]
        done = subprocess.run([*program, "--config-file", str(self.configuration)], capture_output=True, text=True)
        return done.returncode, [tuple(row.values()) for row in json.loads(done.stdout)], done.stderr

    def add_to_mapping(self, text):
        self.mapping.write_text(self.mapping.read_text() + text)

    def test_a_column_is_planned_added_and_then_checked(self):
        self.assertEqual((0, []), self.run_command("check")[:2])
        self.add_to_mapping('note = "text"\n')
        added = ("states", "has no column 'note'", 'ALTER TABLE "states" ADD COLUMN "note" TEXT')
        status, rows, err = self.run_command("plan")
        self.assertEqual((0, [added]), (status, rows))
        self.assertIn("nothing was changed: use --execute to apply", err)
        self.assertEqual((1, [added]), self.run_command("check")[:2])
        self.assertEqual((0, [added], ""), self.run_command("plan", "--execute"))
        self.assertEqual((0, []), self.run_command("check")[:2])

    def test_the_latest_messages_show_dead_letters_and_fields_without_a_column(self):
        values = [b'{"n": 1, "text": "x", "more": true}', b'{"n": "one", "text": "x"}']
        records = [Record(value, partition=0) for value in values]
        self.producer.publish(self.topic, records, timeout=SECONDS).raise_for_undelivered()
        status, rows, _ = self.run_command("check")
        expected = [
            ("copies", "no column reads value.more, which is a boolean", ""),
            ("facts", "no column reads value.more, which is a boolean", ""),
            ("facts", "no column reads value.text, which is text", ""),
            (f"{self.topic}/0/1", "column 'n' is text, not an integer", "dead letter"),
        ]
        self.assertEqual((1, expected), (status, rows))

    def test_a_mapping_is_compared_with_the_latest_schema(self):
        registry = self.useFixture(MemoryRegistry())
        self.configuration.write_text(
            f"{self.configuration.read_text()}[schema_registry]\nurl = {registry.url}\ntimeout_seconds = 5\n"
        )
        table = f'[typed]\ntopic = "{self.topic}"\nserializer = "avro"\n[typed.columns]\nn = "integer"\nno = "text"\n'
        self.mapping.write_text(table)
        self.run_command("plan", "--execute")
        schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]}
        body = {"schema": json.dumps(schema), "schemaType": "AVRO"}
        self.assertEqual(200, registry.answer("POST", f"/subjects/{self.topic}-value/versions", body)[0])
        place = f"the latest schema of {self.topic}-value"
        expected = [
            (
                "typed",
                f"column 'n' reads value.n, which is text, not an integer in {place}: correct the type or the path",
                "dead letter",
            ),
            (
                "typed",
                f"column 'no' reads value.no, which {place} does not have: correct the path or the schema",
                "not stored",
            ),
        ]
        self.assertEqual((1, expected), self.run_command("check")[:2])
        registry.stop()
        status, ((place, finding, action),), _ = self.run_command("check")
        self.assertEqual((1, self.topic, "run again"), (status, place, action))
        self.assertIn(f"is not compared with the mapping: the schema registry {registry.url} is unavailable (", finding)

    @periodic("a variant of the preceding tests")
    def test_a_topic_that_does_not_exist_is_reported(self):
        self.mapping.write_text(self.mapping.read_text().replace(self.states_topic, "missing"))
        self.assertEqual((1, [("missing", "is a topic that does not exist", "refused")]), self.run_command("check")[:2])


class SinkCrashCase(SinkCase, CrashCase):
    one_topic = False

    def crash(self, point, *, mutants=()):
        # The verdict counts the first topic, so a mutant must be killed while it stores that topic.
        self.one_topic = bool(mutants)
        return super().crash(point, mutants=mutants)

    def publish(self, numbers, **named):
        publish = super(SinkCase, self).publish if self.one_topic else super().publish
        publish(numbers, **named)

    def assert_exactly_once(self, verdict):
        super().assert_exactly_once(verdict)
        self.assert_states()


class SinkPoints:
    def test_a_kill_within_the_transaction_changes_nothing(self):
        self.assert_exactly_once(self.crash("storage.in_transaction=kill@5"))

    def test_a_kill_between_the_commits_to_the_database_and_to_kafka_changes_nothing(self):
        self.assert_exactly_once(self.crash("storage.after_commit=kill@5"))

    @periodic("a variant of test_a_kill_within_the_transaction_changes_nothing")
    def test_a_kill_before_a_write_changes_nothing(self):
        self.assert_exactly_once(self.crash("storage.before_write=kill@5"))

    @periodic("a variant of test_a_kill_between_the_commits_to_the_database_and_to_kafka_changes_nothing")
    def test_a_kill_after_a_dead_letter_is_acknowledged_changes_nothing(self):
        self.assert_exactly_once(self.crash("processor.after_dead_letter=kill@2"))

    # Rule 24
    def test_mutant_that_trusts_kafkas_offsets_applies_rows_twice(self):
        verdict = self.crash("storage.after_commit=kill@5", mutants=("no_fence", "trusts_kafkas_offsets"))
        self.assertNotEqual(frozenset(), verdict.duplicate, str(verdict))

    # Rule 24
    @periodic("test_mutant_that_trusts_kafkas_offsets of the normal run tests one such mutant")
    def test_mutant_that_commits_to_kafka_first_loses_messages(self):
        mutants = ("no_fence", "trusts_kafkas_offsets", "commits_to_kafka_first")
        verdict = self.crash("storage.in_transaction=kill@5", mutants=mutants)
        self.assertNotEqual(frozenset(), verdict.lost, str(verdict))


@periodic("repeats a PostgreSQL test on SQLite; the normal run contains SqliteCrashTest of the storage")
class TestSinkCrashSqlite(SinkPoints, SinkCrashCase):
    database = "sqlite"


class TestSinkCrashPostgresql(SinkPoints, SinkCrashCase):
    database = "postgresql"


MESSAGES = 600


class TestSinkZombies(SinkCase, ZombieCase):
    def publish_all(self):
        for first in range(0, MESSAGES, 40):
            self.publish(range(first, first + 40))

    # Rule 23
    def test_three_members_with_all_partitions_apply_each_row_once(self):
        verdict, skipped = self.three_owners()
        verdict.raise_unless_clean()
        self.assert_states()
        self.assertGreater(skipped, 0, "they never met")

    # Rule 23
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_without_the_fence_applies_rows_twice(self):
        verdict, _ = self.three_owners("no_fence")
        self.assertNotEqual(frozenset(), verdict.duplicate, str(verdict))
