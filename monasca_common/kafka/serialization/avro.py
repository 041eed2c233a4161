# SPDX-License-Identifier: Apache-2.0
"""Avro by fastavro, with schemas that are parsed once.

fastavro reads hostile values without limits. A schema whose arrays may have items without bytes is refused, because a
value of ten bytes could have any number of such items. A value is first read without its reader schema, because
fastavro skips fields that this schema does not have without checking for the end of the value, and such a read could
take years. A recursive schema uses fastavro's Python code, which raises an error for a deeply nested value, whereas its
C code ends the process.
"""

from __future__ import annotations

import io
import json
from typing import Any, ClassVar, NamedTuple

import fastavro
from fastavro import _read_py, _write_py
from fastavro.schema import SchemaParseException
from fastavro.validation import ValidationError
from oslo_config import cfg

from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.kafka.serialization.framed import FramedSerializer
from monasca_common.kafka.serialization.registry import Names, SchemaKey

_RECORDS = ("record", "error")


class AvroSchema(NamedTuple):
    """A parsed schema, and the functions of fastavro that read and write its values."""

    parsed: Any
    reads: Any
    writes: Any


class AvroSerializer(FramedSerializer[AvroSchema, Any]):
    """The serializer of plain values (dictionaries for records) as Avro with a schema id."""

    content_type: ClassVar[str] = "application/avro"
    schema_type: ClassVar[str] = "AVRO"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        files = self.registry.settings.reader_schema_files
        self.readers = {name: self.read_schema("reader_schema_files", path)[1].parsed for name, path in files.items()}

    def parse(self, text: str, names: Names) -> AvroSchema:
        return parse(text, names)

    def record_name(self, schema: AvroSchema) -> str:
        name = schema.parsed.get("name") if isinstance(schema.parsed, dict) else None
        if name is None:
            raise ConfigurationError("the schema is not a named type: use subject_name_strategy=topic")
        return str(name)

    def encode(self, value: Any, start: bytes, schema: AvroSchema) -> bytes:
        stream = io.BytesIO()
        stream.write(start)
        try:
            schema.writes(stream, schema.parsed, value, strict_allow_default=True)
        except Exception:
            reason = _invalid_field(value, schema.parsed)
        else:
            return stream.getvalue()
        # Raised outside the except clause, so that no traceback shows the error, which quotes the value.
        raise SerializationError(f"not a value of its Avro schema: {reason}")

    def decode(self, value: bytes, start: int, key: SchemaKey, name: str) -> Any:
        schema = self.registry.get(key)
        reader = self.readers.get(name)
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            decoded = schema.reads(stream, schema.parsed, None)
            if reader is not None:
                stream.seek(start)
                decoded = schema.reads(stream, schema.parsed, reader)
        except Exception as error:
            reason = type(error).__name__
        else:
            if stream.tell() == len(value):
                return decoded
            reason = f"{len(value) - stream.tell()} bytes remain"
        raise SerializationError(f"not a value of the Avro schema {key}: {reason}")


def parse(text: str, names: Names) -> AvroSchema:
    """Return the parsed schema. ``names``: the schemas to which it refers. Raises `SerializationError`."""
    named: dict[str, Any] = {}
    try:
        for _, each in names:
            fastavro.parse_schema(json.loads(each), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(text), named_schemas=named)
        recursive = _Inspection(named).is_recursive(parsed)
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SerializationError(f"not an Avro schema: {type(error).__name__}") from None
    if recursive:
        return AvroSchema(parsed, _read_py.schemaless_reader, _write_py.schemaless_writer)
    return AvroSchema(parsed, fastavro.schemaless_reader, fastavro.schemaless_writer)


def _invalid_field(value: Any, schema: Any) -> str:
    try:
        fastavro.validate(value, schema)
    except ValidationError as error:
        fields = {getattr(each, "field", "") for each in error.errors}
        return f"invalid: {', '.join(sorted(fields))}"
    except Exception as error:
        return type(error).__name__
    return "a number out of range, or a field that the schema does not have"


class _Inspection:
    """Inspects parsed schemas. ``named``: the named types by full name."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._recursive: dict[str, bool] = {}  # a record that is still being inspected counts as recursive
        self._empty: dict[str, bool] = {}

    def is_recursive(self, schema: Any) -> bool:
        """Return whether a type contains itself. Raises `SerializationError` for an array of items without bytes."""
        if isinstance(schema, list):
            return any(list(map(self.is_recursive, schema)))  # inspect all branches
        if isinstance(schema, str):
            return schema in self._named and self.is_recursive(self._named[schema])
        if schema["type"] == "array":
            if self._is_empty(schema["items"]):
                raise SerializationError("an array of items without bytes is refused: a short value can have billions")
            return self.is_recursive(schema["items"])
        if schema["type"] == "map":
            return self.is_recursive(schema["values"])
        if schema["type"] not in _RECORDS:
            return False
        if schema["name"] not in self._recursive:
            self._recursive[schema["name"]] = True
            self._recursive[schema["name"]] = self.is_recursive([each["type"] for each in schema["fields"]])
        return self._recursive[schema["name"]]

    def _is_empty(self, schema: Any) -> bool:
        """Return whether every value of a type has no bytes."""
        if isinstance(schema, list):
            return False
        if isinstance(schema, str):
            return schema == "null" or (schema in self._named and self._is_empty(self._named[schema]))
        if schema["type"] not in _RECORDS:
            return bool(schema["type"] == "null" or schema.get("size") == 0)
        if schema["name"] not in self._empty:
            self._empty[schema["name"]] = False  # a record that contains itself has no end
            self._empty[schema["name"]] = all(self._is_empty(each["type"]) for each in schema["fields"])
        return self._empty[schema["name"]]
