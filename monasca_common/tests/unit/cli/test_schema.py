# SPDX-License-Identifier: Apache-2.0
"""The commands of the schema registry, on the registry in memory."""

import json
import uuid
from dataclasses import replace
from pathlib import Path
from unittest import mock

import fixtures
from google.protobuf import timestamp_pb2

from monasca_common.cli import messages
from monasca_common.cli.messages import SchemaDecoder
from monasca_common.kafka import ConfigurationError, Message, load_serializer
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.tests.contracts.schemas import (
    JSON_READING,
    PROTO_READING,
    READING,
    RENAMED,
    VALUE,
    WITH_UNIT,
    reading_class,
)
from monasca_common.tests.contracts.schemas import RegistryCase as RegistryValues
from monasca_common.tests.unit.cli.command_case import CommandCase


class SchemaCase(CommandCase):
    command = ("schema",)

    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryRegistry())
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.configuration = f"""\
            [kafka]
            bootstrap_servers = 127.0.0.1:1
            [schema_registry]
            url = {self.memory.url}
            subject_name_strategy = topic
            schema_files = readings={self.file("reading.avsc", READING)}
            schema_files = readings:key={self.file("key.avsc", "string")}
            """

    def file(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) and name.endswith(".proto") else json.dumps(content))
        return path

    def states(self, *arguments):
        status, out, err = self.run_command(*arguments, "-f", "json")
        return status, [row["state"] for row in json.loads(out)], err


class RegisterTest(SchemaCase):
    def test_the_files_of_the_configuration_are_checked_and_registered(self):
        self.assertEqual((0, ["new", "new"], ""), self.states("check"))
        status, states, err = self.states("register")
        self.assertEqual((0, ["new", "new"]), (status, states))
        self.assertIn("nothing was changed", err)
        self.assertEqual((0, ["registered", "registered"], ""), self.states("register", "--execute"))
        self.assertEqual((0, ["registered", "registered"], ""), self.states("check"))
        self.assertEqual(["readings-key", "readings-value"], self.memory.answer("GET", "/subjects", {})[1])

    def test_an_incompatible_schema_is_an_error_and_is_not_registered(self):
        self.states("register", "--execute")
        for schema, status, state in ((WITH_UNIT, 0, "compatible"), (RENAMED, 1, "incompatible")):
            path = str(self.file("new.avsc", schema))
            for command in (("check",), ("register",)):
                self.assertEqual((status, [state]), self.states(*command, "readings-value", path)[:2])
        self.assertEqual((1, ["incompatible"]), self.states("register", "readings-value", path, "--execute")[:2])
        self.assertEqual([1], self.memory.answer("GET", "/subjects/readings-value/versions", {})[1])

    def test_each_format_is_registered(self):
        for name, content in (("r.json", JSON_READING), ("r.proto", PROTO_READING)):
            path = str(self.file(name, content))
            self.assertEqual((0, ["registered"], ""), self.states("register", f"{name}-value", path, "--execute"))

    def test_an_invalid_schema_is_reported_and_the_others_are_registered(self):
        self.file("reading.avsc", {"type": "nothing"})
        status, out, _ = self.run_command("register", "--execute", "-f", "json")
        broken, other = json.loads(out)
        self.assertEqual((1, "invalid", "registered"), (status, broken["state"], other["state"]))
        self.assertEqual("readings-value", broken["subject"])
        self.assertIn("not an Avro schema: UnknownType", broken["reason"])
        self.assertEqual((1, ["invalid"]), self.states("check", "s", str(self.folder / "reading.avsc"))[:2])
        (self.folder / "reading.avsc").write_text('{"type": "string", "doc": "\u00e9"}', encoding="latin-1")
        self.assertEqual((1, ["invalid", "registered"]), self.states("register", "--execute")[:2])

    def test_a_wrong_argument_is_refused(self):
        for arguments, part in (
            (("s", "/nowhere.avsc"), "is not a schema"),
            (("s", str(self.file("x.txt", "x"))), ".avsc, .json, .proto"),
            (("s",), "name a subject and its file"),
        ):
            status, _, err = self.run_command("check", *arguments)
            self.assertEqual(1, status)
            self.assertIn(part, err)

    def test_an_unavailable_registry_is_an_error(self):
        self.memory.stop()
        for arguments in (("check",), ("list",), ("show", "s")):
            status, _, err = self.run_command(*arguments)
            self.assertEqual(1, status)
            self.assertIn("is unavailable (ConnectError)", err)


class ShowTest(SchemaCase):
    def setUp(self):
        super().setUp()
        self.states("register", "--execute")
        self.states("register", "readings-value", str(self.file("new.avsc", WITH_UNIT)), "--execute")

    def test_subjects_are_listed(self):
        status, out, _ = self.run_command("list", "-f", "json")
        self.assertEqual(0, status)
        self.assertIn({"subject": "readings-value", "latest_version": 2, "latest_id": 3}, json.loads(out))
        self.assertEqual(1, len(json.loads(self.run_command("list", "--subject", "*-key", "-f", "json")[1])))
        self.assertEqual(3, self.run_command("list", "--subject", "x")[0])

    def test_a_schema_is_shown(self):
        for arguments, schema in (
            (("readings-value",), WITH_UNIT),
            (("readings-value", "--schema-version", "1"), READING),
            (("--id", "3"), WITH_UNIT),
        ):
            status, out, _ = self.run_command("show", *arguments)
            self.assertEqual((0, schema), (status, json.loads(out)))
        for arguments in (("x",), ("readings-value", "--schema-version", "9"), ("--id", "99")):
            self.assertEqual(3, self.run_command("show", *arguments)[0])
        self.assertEqual(1, self.run_command("show")[0])


class DecoderTest(RegistryValues):
    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryRegistry())
        self.url = self.memory.url
        self.remarks = []

    def decoded(self, value, **options):
        message = Message(self.topic, 0, 0, 1000, None, value, ())
        return SchemaDecoder(self.conf(**options), self.remarks.append).decoded(message).value

    def test_a_value_with_a_schema_is_shown_as_json(self):
        value = self.avro(schema=READING).dumps(VALUE, self.context)

        self.assertEqual(VALUE, json.loads(self.decoded(value)))
        self.assertEqual(value, self.decoded(value, url=None))
        self.assertEqual(b"{}", self.decoded(b"{}"))

    def test_a_value_whose_schema_is_in_a_header_is_shown_as_json(self):
        value = self.avro(schema=READING).dumps(VALUE, self.context)
        guid = self.memory.answer("GET", f"/subjects/{self.topic}-value/versions/1", {})[1]["guid"]
        headers = (("__value_schema_id", b"\1" + uuid.UUID(guid).bytes),)
        message = Message(self.topic, 0, 0, 1000, None, value[5:], headers)

        self.assertEqual(VALUE, json.loads(SchemaDecoder(self.conf(), self.remarks.append).decoded(message).value))

    def test_a_value_that_cannot_be_decoded_is_shown_unchanged(self):
        self.avro(schema=READING).dumps(VALUE, self.context)
        self.assertEqual(b"\0\0\0\0\1x", self.decoded(b"\0\0\0\0\1x"))
        self.assertEqual([], self.remarks)
        self.memory.stop()
        self.assertEqual(b"\0\0\0\0\1x", self.decoded(b"\0\0\0\0\1x"))
        self.assertEqual(1, len(self.remarks))

    def test_a_value_in_protobuf_is_shown_as_json_with_its_message_type(self):
        reading, _ = reading_class()
        serializer = load_serializer("protobuf", conf=self.conf(schema=PROTO_READING), type=reading)
        message = Message(self.topic, 0, 0, 1000, None, serializer.dumps(reading(room="hall"), self.context), ())
        self.assertEqual(message.value, self.decoded(message.value))
        with mock.patch.object(messages, "entry_point", return_value=reading):
            decoder = SchemaDecoder(self.conf(), self.remarks.append, "reading")
            self.memory.stop()
            self.assertEqual({"room": "hall"}, json.loads(decoder.decoded(message).value))
            for value in (b"{}", b"\0\0\0\0\1x", message.value[:-1]):
                self.assertEqual(value, decoder.decoded(replace(message, value=value)).value)
            error = self.assertRaises(
                ConfigurationError, SchemaDecoder, self.conf(url=None), self.remarks.append, "reading"
            )
        self.assertIn("url in group [schema_registry]", str(error))
        self.assertEqual([], self.remarks)

    def test_a_message_that_json_cannot_represent_is_shown_unchanged(self):
        late = timestamp_pb2.Timestamp(seconds=2**62)
        value = b"\0\0\0\0\1\0" + late.SerializeToString()
        with mock.patch.object(messages, "entry_point", return_value=timestamp_pb2.Timestamp):
            decoder = SchemaDecoder(self.conf(), self.remarks.append, "time")
        message = Message(self.topic, 0, 0, 1000, None, value, ())
        self.assertEqual(value, decoder.decoded(message).value)

    def test_an_unknown_message_type_is_refused(self):
        error = self.assertRaises(ConfigurationError, SchemaDecoder, self.conf(), self.remarks.append, "nothing")
        self.assertIn("--message-type=nothing is not known", str(error))

    def test_a_missing_format_is_reported_only_if_a_value_cannot_be_decoded(self):
        value = self.avro(schema=READING).dumps(VALUE, self.context)
        load = messages.load_serializer

        def without_json_schema(name, **arguments):
            if name == "json-schema":
                raise ConfigurationError("install monasca-common[json-schema]")
            return load(name, **arguments)

        with mock.patch.object(messages, "load_serializer", without_json_schema):
            message = Message(self.topic, 0, 0, 1000, None, value, ())
            decoder = SchemaDecoder(self.conf(), self.remarks.append)
            self.assertEqual(VALUE, json.loads(decoder.decoded(message).value))
            self.assertEqual([], self.remarks)
            decoder.decoded(replace(message, value=b"\0\0\0\0\1x"))

        self.assertEqual(["some values are not decoded: install monasca-common[json-schema]"], self.remarks)
