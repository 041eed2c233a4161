# SPDX-License-Identifier: Apache-2.0
import json

from oslo_config import cfg

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.sink.mapping import InvalidMapping
from monasca_common.sink.service import decoders
from monasca_common.tests.unit.sink.sink_case import SinkTestCase

_TABLE = '[orders]\ntopic = "orders"\n{}\n[orders.columns]\n{}\n'


class MappingTest(SinkTestCase):
    def faults(self, text):
        """Return the faults of a mapping file, without its name."""
        return list(self.assertRaises(InvalidMapping, self.mapping, text).faults)

    def assert_fault(self, expected, fields="", columns='id = "integer"'):
        self.assertEqual([expected], self.faults(_TABLE.format(fields, columns)))

    def test_all_faults_are_reported_with_file_entry_rule_and_remedy(self):
        text = _TABLE.format('mode = "upsert"\nkey = ["nothing"]', 'id = "int"\nname = {type = "text", from = "body"}')
        self.assertEqual(3, len(self.faults(text)))
        try:
            self.mapping(text)
        except Exception as error:
            self.assertIn(
                f"{self.folder}/mapping.toml: [orders] columns.id has type 'int': use one of text, ", str(error)
            )

    def test_an_unknown_mode_hides_no_fault_of_a_column(self):
        mode, column = self.faults(_TABLE.format('mode = "upsrt"', 'id = "int"'))
        self.assertEqual("[orders] mode is 'upsrt': use one of insert, upsert, delete-on-tombstone", mode)
        self.assertIn("columns.id has type 'int'", column)

    def test_a_file_that_cannot_be_read_or_is_not_toml_is_refused(self):
        self.assertIn("is not TOML", self.faults("[orders")[0])
        self.assertIn("has no table", self.faults("")[0])

    def test_an_unknown_field_is_refused_with_the_known_ones(self):
        (fault,) = self.faults(_TABLE.format('topics = "x"', 'id = "integer"'))
        self.assertIn(
            "[orders] is refused (Table contains unknown field `topics`): write a table with fields of topic, columns",
            fault,
        )

    def test_a_table_of_this_program_is_refused(self):
        text = '[kafka_offset]\ntopic = "x"\n[kafka_offset.columns]\nid = "integer"\n'
        self.assertEqual(["[kafka_offset] is a table of this program: name another table"], self.faults(text))

    def test_names_that_differ_only_in_case_are_refused(self):
        self.assert_fault(
            "[orders] columns.id is defined twice, because case is ignored: rename one", "", 'id="text"\nID="text"'
        )

    def test_a_mode_that_finds_rows_requires_a_key(self):
        self.assert_fault(
            "[orders] key is missing, but mode upsert needs it: name the columns of the primary key", 'mode = "upsert"'
        )

    def test_the_key_of_a_deletion_is_not_in_its_value(self):
        self.assert_fault(
            "[orders] key names 'id', but a deletion has no value: read it from key, header, topic, partition",
            'mode = "delete-on-tombstone"\nkey = ["id"]',
        )

    def test_a_key_has_columns_that_databases_compare_exactly(self):
        self.assert_fault(
            "[orders] key names 'id' of type double: a key has columns of text, integer, boolean, timestamp, bytes",
            'key = ["id"]',
            'id = "double"',
        )

    def test_columns_of_elements_require_the_option_each(self):
        self.assert_fault(
            "[orders] columns.id reads 'element.id', but the entry has no each: name the path of an array in each",
            "",
            'id = {type = "integer", from = "element.id"}',
        )

    def test_an_invalid_path_and_an_invalid_default_are_refused(self):
        self.assertIn("has the path '.a..b'", self.faults(_TABLE.format("", 'a = {type="text", from="value.a..b"}'))[0])
        self.assertIn(
            "has a default that is text", self.faults(_TABLE.format("", 'a = {type="integer", default="x"}'))[0]
        )

    def test_a_header_is_read_by_its_name(self):
        for text in ("header[0]", "header.", "header", 'header."a', "header.\0", 'header."\0"'):
            with self.subTest(text):
                source = json.dumps(text)
                (fault,) = self.faults(_TABLE.format("", f"id = {{type = 'text', from = {source}}}"))
                self.assertIn(f"[orders] columns.id has from = {text!r}: use one of value, key, header.<name>", fault)
        columns = """id = {type = 'text', from = 'header."a b"'}\nno = {type = 'text', from = 'header.a.b'}"""
        (table,) = self.mapping(_TABLE.format("", columns))
        self.assertEqual(["a b", "a.b"], [column.source.header for column in table.columns[1:]])

    def test_a_type_that_a_part_never_has_is_refused(self):
        for part, kind, rule in (
            ("partition", "text", "is an integer, not text"),
            ("timestamp", "text", "is an integer, not text"),
            ("offset", "bytes", "is an integer, not bytes"),
            ("topic", "integer", "is text, not an integer"),
        ):
            self.assert_fault(
                f"[orders] columns.id reads {part}, which {rule}: use another type",
                "",
                f'id = {{type = "{kind}", from = "{part}"}}',
            )

    def test_an_empty_source_and_a_default_of_bytes_are_refused(self):
        self.assertIn("has from = ''", self.faults(_TABLE.format("", 'id = {type = "text", from = ""}'))[0])
        self.assert_fault(
            "[orders] columns.id has a default that is text, not bytes: remove it",
            "",
            'id = {type = "bytes", default = "x"}',
        )

    def test_an_invalid_each_is_one_fault(self):
        self.assert_fault("[orders] each is 'header.x': write value.<path> of an array, or value", 'each = "header.x"')

    def test_the_name_of_the_row_id_is_reserved(self):
        self.assertEqual(
            "[orders] columns.message_id is the row id of a table without key: rename it, or set key",
            self.faults(_TABLE.format("", 'message_id = "text"'))[0],
        )

    def test_errors_of_serializers_name_the_table(self):
        tables = self.mapping(_TABLE.format('serializer = "xml"', 'id = "integer"'))
        error = self.assertRaises(ConfigurationError, decoders, tables, cfg.ConfigOpts())
        self.assertIn("[orders] in mapping_file: serializer=xml is not known: use one of ", str(error))
        self.assert_fault(
            "[orders] message_type is missing, but serializer protobuf needs it: name a generated class",
            'serializer = "protobuf"',
        )

    def test_names_that_are_too_long_for_postgresql_are_refused(self):
        self.assertIn("use 1 to 63 bytes", self.faults(_TABLE.format("", f'{"x" * 64} = "text"'))[0])
