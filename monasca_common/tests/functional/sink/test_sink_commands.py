# SPDX-License-Identifier: Apache-2.0
"""``sink plan`` and ``sink check`` on a real Kafka."""

import json
import subprocess
import sys

from monasca_common.kafka.message import Record
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.tests.functional.persister.persister_case import SECONDS
from monasca_common.tests.functional.sink.sink_case import SinkCase
from monasca_common.tests.periodic import periodic


class TestSinkCommands(SinkCase):
    database = "sqlite"

    def setUp(self):
        super().setUp()
        self.configuration = self.folder / "sink.conf"
        self.configuration.write_text(self.configured(1, batch_size=20, metrics="", others=""))

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
