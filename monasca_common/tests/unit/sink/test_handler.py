# SPDX-License-Identifier: Apache-2.0
import sqlite3
from unittest import mock

import fixtures

from monasca_common.kafka import Serializer
from monasca_common.kafka.errors import MisuseError, Poison, ReadFrom, RetryLater
from monasca_common.kafka.failpoints import FailPointReached, armed
from monasca_common.kafka.message import TopicPartition
from monasca_common.sink import service
from monasca_common.storage.tables.writer import TablesWriter
from monasca_common.tests.unit.sink.sink_case import SinkTestCase, batch, message

_FACTS = '[facts]\ntopic = "t"\nkey = ["n"]\n[facts.columns]\nn = "integer"\ntext = "text"\n'
_LINES = (
    '[lines]\ntopic = "t"\neach = "value"\n[lines.columns]\nn = {type = "integer", from = "element", required = true}\n'
)
_STATES = """\
[states]
topic = "t"
mode = "delete-on-tombstone"
key = ["name"]
[states.columns]
name = {type = "text", from = "key"}
n = "integer"
"""


class CarelessSerializer(Serializer):
    content_type = "text/plain"
    error = ValueError("secret")

    def dumps(self, value):
        raise NotImplementedError

    def loads(self, value):
        if value == b"secret":
            raise self.error
        return {"n": int(value)}


def facts(*numbers):
    return [message(b'{"n": %d, "text": "x"}' % number) for number in numbers]


class SinkHandlerTest(SinkTestCase):
    def numbers(self, table="facts"):
        return [n for (n,) in self.select(f"SELECT n FROM {table} ORDER BY n")]

    def offset(self):
        return self.select("SELECT next FROM kafka_offset")[0][0]

    # Rule 23
    def test_messages_below_the_stored_offset_are_skipped(self):
        self.open(_FACTS)
        self.handler(batch("t", facts(1, 2, 3)))
        self.handler(batch("t", facts(1, 2, 3, 4)))
        self.assertEqual([1, 2, 3, 4], self.numbers())
        self.assertEqual((1, 3), (self.applied[-1].stored, self.applied[-1].skipped))

    # Rule 23
    def test_a_range_after_the_stored_offset_is_read_again_from_there(self):
        self.open(_FACTS)
        self.handler(batch("t", facts(1)))
        self.assertEqual(1, self.assertRaises(ReadFrom, self.handler, batch("t", facts(9), first=5)).offset)

    def test_an_error_in_the_transaction_stores_neither_rows_nor_offset(self):
        self.open(_FACTS)
        self.handler(batch("t", facts(1)))
        with armed("storage.in_transaction", "raise"):
            self.assertRaises(FailPointReached, self.handler, batch("t", facts(2), first=1))
        self.assertEqual(([1], 1), (self.numbers(), self.offset()))

    def test_bad_elements_are_dead_letters_and_their_siblings_are_stored_once(self):
        self.open(_LINES)
        letters = self.process(batch("t", [message(b"[1, null, 3]"), message(b"[4]"), message(b'["x"]')]))
        self.assertEqual(
            {
                0: "element 1: column 'n' is missing or null",
                2: "element 0: column 'n' is text, not an integer",
            },
            letters,
        )
        self.assertEqual(([1, 3, 4], 3), (self.numbers("lines"), self.offset()))

    def test_a_sibling_that_the_database_refuses_stays_a_dead_letter_and_is_logged(self):
        self.open(_LINES)
        self.execute("CREATE UNIQUE INDEX other ON lines (n)")
        logged = self.useFixture(fixtures.FakeLogger())
        letters = self.process(batch("t", [message(b"[0]"), message(b"[0, null, 7]")]))
        self.assertEqual({1: "element 1: column 'n' is missing or null"}, letters)
        self.assertIn("element 0 of the dead letter t/0/1 is not stored: the database refuses", logged.output)
        self.assertEqual(([0, 7], 2), (self.numbers("lines"), self.offset()))

    def test_an_element_that_the_database_refuses_is_a_dead_letter_without_its_siblings(self):
        self.open(_LINES)
        self.execute("CREATE UNIQUE INDEX other ON lines (n)")
        letters = self.process(batch("t", [message(b"[1, 1, 2]"), message(b"[3]")]))
        self.assertIn("element 1: the database refuses", letters[0])
        self.assertEqual(([1, 2, 3], 2), (self.numbers("lines"), self.offset()))

    def test_an_element_of_one_table_does_not_refuse_the_row_of_its_message_in_another(self):
        self.open(_LINES + '[sizes]\ntopic = "t"\n[sizes.columns]\nn = {type = "json", from = "value"}\n')
        self.process(batch("t", [message(b"[null]")]))
        self.assertEqual([("[null]",)], self.select("SELECT n FROM sizes"))

    def test_siblings_of_a_batch_of_dead_letters_are_stored_with_their_offset(self):
        self.open(_LINES)
        part = batch("t", [message(b"[1, null]")])
        self.process(part)
        self.assertEqual(([1], 1), (self.numbers("lines"), self.offset()))
        self.handler.accounted(TopicPartition("t", 0), 1, 2)
        self.assertEqual(2, self.offset())

    def test_siblings_of_an_offset_that_is_read_again_are_not_stored(self):
        self.open(_LINES)
        self.assertRaises(Poison, self.handler, batch("t", [message(b"[1, null]")]))
        self.handler(batch("t", [message(b"[7]")]))  # of a recreated topic
        self.assertEqual([7], self.numbers("lines"))

    def test_an_element_of_one_table_does_not_refuse_the_same_element_in_another(self):
        texts = '[texts]\ntopic = "t"\neach = "value"\n[texts.columns]\nvalue = {type = "json", from = "element"}\n'
        self.open(_LINES + texts)
        self.assertEqual(
            {0: "element 1: column 'n' is text, not an integer"}, self.process(batch("t", [message(b'[1, "x"]')]))
        )
        self.assertEqual(([1], 1), (self.numbers("lines"), self.offset()))
        self.assertEqual([(1,), ('"x"',)], self.select("SELECT value FROM texts ORDER BY element_index"))

    def test_rows_that_the_database_refuses_are_dead_letters_with_its_reason(self):
        self.open(_FACTS)
        self.execute("CREATE UNIQUE INDEX other ON facts (text)")
        messages = [message(b'{"n": %d, "text": "%d"}' % (n, n % 3)) for n in range(5)]
        letters = self.process(batch("t", messages))
        self.assertEqual({3, 4}, letters.keys())
        self.assertIn("UNIQUE constraint failed", letters[3])
        self.assertEqual(([0, 1, 2], 5), (self.numbers(), self.offset()))

    def test_many_rows_that_exclude_each_other_need_few_trials(self):
        self.open(_FACTS)
        self.execute("CREATE UNIQUE INDEX other ON facts (text)")
        messages = [message(b'{"n": %d, "text": "%d"}' % (n, n // 2)) for n in range(100)]
        attempt = mock.patch.object(TablesWriter, "_attempt", autospec=True, side_effect=TablesWriter._attempt)
        with attempt as attempts:
            self.assertEqual(set(range(1, 100, 2)), self.process(batch("t", messages)).keys())
        self.assertLess(attempts.call_count, 1200)
        self.assertEqual(list(range(0, 100, 2)), self.numbers())

    def test_rows_refused_in_a_later_part_belong_to_its_messages(self):
        self.open(_FACTS)
        self.execute("CREATE UNIQUE INDEX other ON facts (text)")
        self.handler._size.most_rows = 2
        messages = [message(b'{"n": %d, "text": "%d"}' % (n, n % 4)) for n in range(6)]
        self.assertEqual({4, 5}, self.process(batch("t", messages)).keys())
        self.assertEqual(([0, 1, 2, 3], 6), (self.numbers(), self.offset()))

    def test_a_bad_message_is_a_dead_letter_with_each_column_and_reason(self):
        self.open(_FACTS)
        letters = self.process(
            batch("t", [*facts(1), message(b'{"n": "x", "text": 5}'), message(b"no"), message(None)])
        )
        self.assertEqual("column 'n' is text, not an integer; column 'text' is an integer, not text", letters[1])
        self.assertEqual("value: not JSON: ", letters[2][:17])
        self.assertEqual("has no value (a deletion): use mode delete-on-tombstone", letters[3])

    def test_an_error_of_a_plugin_makes_a_dead_letter_that_does_not_quote_the_value(self):
        with mock.patch.object(service, "load_serializer", lambda *_, **__: CarelessSerializer()):
            self.open(_FACTS)
        part = batch("t", [message(b"1"), message(b"secret"), message(b"2")])
        self.assertEqual({1: "value: the serializer raised ValueError"}, self.process(part))
        self.assertEqual([1, 2], self.numbers())
        for error in (RetryLater(), MisuseError("misuse")):
            with mock.patch.object(CarelessSerializer, "error", error):
                self.assertRaises(type(error), self.handler, batch("t", [message(b"secret")], first=3))

    def test_the_first_inserted_and_the_last_upserted_row_of_a_key_in_a_batch_is_stored(self):
        messages = [message(b'{"n": %d, "text": "%d"}' % (n, at)) for at, n in enumerate((2, 1, 2, 3, 1))]
        for mode, texts, outcomes in (("insert", "103", (3, 2, 0)), ("upsert", "423", (3, 0, 2))):
            self.use_database(f"{mode}.sqlite")
            self.open(_FACTS.replace("key =", f'mode = "{mode}"\nkey ='))
            self.handler(batch("t", messages))
            self.assertEqual([(text,) for text in texts], self.select("SELECT text FROM facts ORDER BY n"))
            self.assertEqual(outcomes, self.applied[-1][:3])

    def test_the_last_of_a_row_and_a_deletion_counts(self):
        self.open(_STATES)
        values = [
            ("a", b'{"n": 1}'),
            ("b", b'{"n": 2}'),
            ("a", None),
            ("c", None),
            ("c", b'{"n": 3}'),
            ("b", b'{"n": 4}'),
        ]
        self.handler(batch("t", [message(value, key=key.encode()) for key, value in values]))
        self.assertEqual([("b", 4), ("c", 3)], self.select("SELECT name, n FROM states ORDER BY name"))
        self.handler(batch("t", [message(None, key=b"b"), message(None, key=b"none")], first=6))
        self.assertEqual([("c", 3)], self.select("SELECT name, n FROM states"))

    def test_a_table_that_does_not_fit_waits_without_dead_letters(self):
        self.open(_FACTS)
        self.execute("ALTER TABLE facts RENAME COLUMN text TO other")
        self.assertRaises(RetryLater, self.handler, batch("t", facts(1)))
        self.execute("ALTER TABLE facts RENAME COLUMN other TO text")
        self.handler(batch("t", facts(1)))
        self.execute("ALTER TABLE facts ADD COLUMN more TEXT NOT NULL DEFAULT ''")
        self.handler(batch("t", facts(2), first=1))
        self.assertEqual([1, 2], self.numbers())
        self.assertEqual([], self.failures)

    def test_a_deletion_waits_for_a_table_without_its_key_column(self):
        self.open(_STATES)
        self.handler(batch("t", [message(b'{"n": 1}', key=b"name")]))
        self.execute("ALTER TABLE states RENAME COLUMN name TO other")
        self.assertRaises(RetryLater, self.handler, batch("t", [message(None, key=b"name")], first=1))
        self.assertEqual(([("name", 1)], []), (self.select("SELECT * FROM states"), self.failures))
        self.execute("ALTER TABLE states RENAME COLUMN other TO name")
        self.handler(batch("t", [message(None, key=b"name")], first=1))
        self.assertEqual([], self.select("SELECT * FROM states"))

    def test_a_required_column_that_the_mapping_omits_makes_its_table_wait(self):
        self.open(_FACTS, create=False)
        self.execute("CREATE TABLE facts (n BIGINT PRIMARY KEY, text TEXT, own TEXT NOT NULL)")
        self.assertRaises(RetryLater, self.handler, batch("t", facts(1)))

    def test_a_default_is_stored_alike_with_and_without_other_values_in_the_batch(self):
        self.open(_FACTS + 'd = {type = "json", default = {a = 1}}\n')
        self.handler(batch("t", facts(1)))
        self.handler(batch("t", [*facts(2), message(b'{"n": 3, "d": []}')], first=1))
        self.assertEqual([('{"a":1}',), ('{"a":1}',), ("[]",)], self.select("SELECT d FROM facts ORDER BY n"))

    def test_names_are_quoted(self):
        name = 'a"; DROP TABLE kafka_offset; --%s :x ?'
        quoted = name.replace('"', '\\"')
        column = f'"{quoted}" = {{type="text", from="value"}}'
        self.open(f'["{quoted}"]\ntopic = "t"\nkey = ["{quoted}"]\n["{quoted}".columns]\n{column}\n')
        self.handler(batch("t", [message(b'"x"')]))
        escaped = name.replace('"', '""')
        self.assertEqual([("x",)], self.select(f'SELECT "{escaped}" FROM "{escaped}"'))

    def execute(self, statement):
        with sqlite3.connect(self.path) as connection:
            connection.execute(statement)
        connection.close()
