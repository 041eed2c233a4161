# SPDX-License-Identifier: Apache-2.0
from unittest import mock

from oslo_config import cfg

from monasca_common.kafka import RetriableError, plugins
from monasca_common.kafka.message import Message
from monasca_common.sink.sample import sample_findings
from monasca_common.sink.service import decoders
from monasca_common.storage.tables.steps import table_steps
from monasca_common.tests.command import run_main
from monasca_common.tests.unit.sink.sink_case import SinkTestCase

_ORDERS = '[orders]\ntopic = "t"\nkey = ["id"]\n[orders.columns]\nid = "integer"\n{}\n'


class TablePlanTest(SinkTestCase):
    def steps(self, columns="", *, execute=False):
        return table_steps(self.settings, self.mapping(_ORDERS.format(columns)), execute=execute)

    def test_a_missing_table_is_created(self):
        (step,) = self.steps(execute=True)
        self.assertEqual(("orders", "does not exist"), (step.table, step.finding))
        self.assertEqual([], self.steps())

    def test_a_missing_column_is_added_and_nullable(self):
        self.steps(execute=True)
        (step,) = self.steps('note = {type = "text", required = true}', execute=True)
        self.assertEqual('ALTER TABLE "orders" ADD COLUMN "note" TEXT', step.statement)
        self.assertEqual([], self.steps('note = "text"'))

    def test_another_type_is_refused_and_then_nothing_is_executed(self):
        self.steps('at = "text"', execute=True)
        steps = self.steps('at = "integer"\nnote = "text"', execute=True)
        self.assertEqual(["", 'ALTER TABLE "orders" ADD COLUMN "note" TEXT'], [step.statement for step in steps])
        self.assertEqual(
            "has column 'at' of type TEXT, which does not store integer: change the type in the mapping",
            steps[0].finding,
        )
        self.assertEqual(2, len(self.steps('at = "integer"\nnote = "text"')))

    def test_a_column_that_rounds_exact_numbers_is_refused(self):
        self.select("CREATE TABLE orders (id BIGINT PRIMARY KEY, one NUMERIC, two TEXT)")
        (step,) = self.steps('one = "numeric"\ntwo = "numeric"')
        self.assertEqual(
            "has column 'one' of type NUMERIC, which does not store numeric: change the type in the mapping",
            step.finding,
        )

    def test_a_table_without_a_unique_key_is_refused(self):
        self.select("CREATE TABLE orders (id BIGINT)")
        (step,) = self.steps()
        self.assertEqual("has no primary key or unique index of exactly the columns id: create one", step.finding)

    def test_a_partial_unique_index_is_refused(self):
        self.select("CREATE TABLE orders (id BIGINT)")
        self.select("CREATE UNIQUE INDEX part ON orders (id) WHERE id > 5")
        (step,) = self.steps()
        rule = "has no primary key or unique index of exactly the columns id except one that is partial: create one"
        self.assertEqual((rule, ""), (step.finding, step.statement))
        self.select("CREATE UNIQUE INDEX whole ON orders (id)")
        self.assertEqual([], self.steps())

    def test_a_key_without_an_index_of_its_own_is_accepted(self):
        self.select("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        self.assertEqual([], self.steps())

    def test_a_key_that_compares_different_texts_as_equal_is_refused(self):
        self.select("CREATE TABLE names (name TEXT COLLATE NOCASE PRIMARY KEY)")
        mapping = '[names]\ntopic = "t"\nkey = ["name"]\n[names.columns]\nname = "text"\n'
        (step,) = table_steps(self.settings, self.mapping(mapping))
        self.assertIn("except one that has the collation NOCASE: create one", step.finding)

    def test_a_view_is_refused(self):
        self.select("CREATE VIEW orders AS SELECT 1 AS id")
        (step,) = self.steps()
        self.assertEqual("is a view or a foreign table: name a table", step.finding)

    def test_a_generated_column_may_be_omitted_and_is_refused_in_the_mapping(self):
        self.select("CREATE TABLE orders (id BIGINT PRIMARY KEY, twice BIGINT NOT NULL AS (2 * id))")
        self.assertEqual([], self.steps())
        (step,) = self.steps('twice = "integer"')
        self.assertEqual("has column 'twice' that the database generates: remove it from the mapping", step.finding)

    def test_a_sample_shows_dead_letters_and_fields_that_no_column_reads(self):
        tables = self.mapping(_ORDERS.format(""))
        values = [b'{"id": 1, "note": "x"}', b'{"id": "1"}']
        messages = [Message("t", 0, offset, 0, None, value, ()) for offset, value in enumerate(values)]
        self.assertEqual(
            [("orders", "no column reads value.note, which is text"), ("t/0/1", "column 'id' is text, not an integer")],
            sample_findings(decoders(tables, cfg.ConfigOpts())["t"], messages),
        )

    def test_names_of_fields_cannot_control_the_terminal(self):
        tables = self.mapping(_ORDERS.format(""))
        messages = [Message("t", 0, 0, 0, None, b'{"id": 1, "\\u001b[2J": "x"}', ())]
        [(_, finding)] = sample_findings(decoders(tables, cfg.ConfigOpts())["t"], messages)
        self.assertEqual("no column reads value['\\x1b[2J'], which is text", finding)


class PlanCommandTest(SinkTestCase):
    def run_plan(self, *arguments, brokers=None):
        """Return the exit status and the output of ``sink plan --execute``, with a cluster without topics."""
        self.mapping(_ORDERS.format(""))
        file = self.folder / "sink.conf"
        file.write_text(
            "[kafka]\nbootstrap_servers = kafka:9092\n[storage]\ndriver = sqlite\n[database]\n"
            f"connection = {self.settings.connection}\n[sink]\nmapping_file = {self.folder}/mapping.toml\n"
        )
        with mock.patch.object(plugins, "open_admin") as admin:
            admin.return_value.partition_counts = mock.Mock(side_effect=brokers, return_value={})
            return run_main("sink", "plan", "--execute", "--config-file", str(file), *arguments)[:2]

    def test_an_unknown_column_is_refused_before_a_table_is_created(self):
        self.assertEqual((1, ""), self.run_plan("-c", "table"))
        (step,) = table_steps(self.settings, self.mapping(_ORDERS.format("")))
        self.assertEqual("does not exist", step.finding)

    def test_created_tables_are_printed_although_the_brokers_do_not_respond(self):
        status, out = self.run_plan("-f", "value", "-c", "finding", brokers=RetriableError("no response"))
        self.assertEqual((1, "does not exist\n"), (status, out))
