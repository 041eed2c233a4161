# SPDX-License-Identifier: Apache-2.0
"""Avro with fastavro, whose schemas are parsed once.

fastavro reads hostile values without limits. A schema with an array whose items are encoded in zero bytes, or with
nested records without bytes, is refused, because a value of ten bytes could have any number of them. Long decimals are
refused, because converting them takes quadratic time. A value is first read without its reader schema: when fastavro
skips fields that the reader schema does not have, it does not check for the end of the value, so such a read could take
years. For a recursive schema, fastavro's Python code is used, which raises an error for a deeply nested value, whereas
its C code ends the process.
"""

from __future__ import annotations

import decimal
import io
import json
from typing import Any, ClassVar, NamedTuple

import fastavro
from fastavro import _read_py, _write_py
from fastavro.schema import SchemaParseException
from oslo_config import cfg

from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.kafka.serialization.framed import FramedSerializer
from monasca_common.kafka.serialization.registry import Names, SchemaKey

_MOST_DIGITS = 1000


class AvroSchema(NamedTuple):
    """A parsed schema, and the functions of fastavro that read and write its values."""

    parsed: Any
    reads: Any
    writes: Any


class AvroSerializer(FramedSerializer[AvroSchema]):
    """A serializer of plain values (dictionaries for records) as Avro with a schema id."""

    content_type: ClassVar[str] = "application/avro"
    schema_type: ClassVar[str] = "AVRO"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        files = self.registry.settings.reader_schema_files
        self.readers = {name: self.read_schema("reader_schema_files", path)[1].parsed for name, path in files.items()}

    @staticmethod
    def parse(text: str, names: Names) -> AvroSchema:
        named: dict[str, Any] = {}
        try:
            for _, each in (*names, ("", text)):
                parsed = fastavro.parse_schema(json.loads(each), named_schemas=named)
            recursive, _ = _inspect(parsed, named, {})
            parsed = _complete(parsed, named)
        except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SerializationError(f"not an Avro schema: {type(error).__name__}") from None
        reader, writer = (_read_py, _write_py) if recursive else (fastavro, fastavro)
        return AvroSchema(parsed, reader.schemaless_reader, writer.schemaless_writer)

    def record_name(self, schema: AvroSchema) -> str:
        name = schema.parsed.get("name") if isinstance(schema.parsed, dict) else None
        if name is None:
            raise ConfigurationError("the schema is not a named type: use subject_name_strategy=topic")
        return str(name)

    def encode(self, value: Any, schema: AvroSchema) -> bytes:
        stream = io.BytesIO()
        try:
            schema.writes(stream, schema.parsed, value, strict_allow_default=True)
            return stream.getvalue()
        except Exception:
            reason = _invalid_field(value, schema.parsed)
        # Raised outside the except clause, so that no traceback shows the error, which quotes the value.
        raise SerializationError(f"not a value of its Avro schema: {reason}")

    def decode(self, value: bytes, key: SchemaKey, name: str) -> Any:
        schema = self.registry.get(key)
        reader = self.readers.get(name)
        stream = io.BytesIO(value)
        try:
            decoded = schema.reads(stream, schema.parsed, None)
            if reader is not None:
                stream.seek(0)
                decoded = schema.reads(stream, schema.parsed, reader)
            if stream.tell() == len(value):
                return decoded
            reason = f"{len(value) - stream.tell()} bytes remain"
        except Exception as error:
            reason = type(error).__name__
        raise SerializationError(f"not a value of the Avro schema {key}: {reason}")


def _read_decimal(data: bytes, schema: Any, *_: Any) -> decimal.Decimal:
    """Read a decimal like fastavro, which rounds more digits than the schema allows: refuse them."""
    number = int.from_bytes(data, signed=True)
    if abs(number) >= 10 ** min(schema["precision"], _MOST_DIGITS):
        raise ValueError
    return decimal.Decimal(f"{number}e-{schema.get('scale', 0)}")


for _readers in (fastavro.read.LOGICAL_READERS, _read_py.LOGICAL_READERS):  # type: ignore[attr-defined]
    _readers.update(dict.fromkeys(("bytes-decimal", "fixed-decimal"), _read_decimal))  # for the whole process


def _invalid_field(value: Any, schema: Any) -> str:
    try:
        fastavro.validate(value, schema)
    except fastavro.validation.ValidationError as error:
        fields = {getattr(each, "field", "") for each in error.errors}
        return f"invalid: {', '.join(sorted(fields))}"
    except Exception as error:
        return type(error).__name__
    return "a number out of range, or a field that the schema does not have"


def _complete(schema: Any, named: dict[str, Any]) -> Any:
    """Return a schema that contains the types that it names, as fastavro returns only records."""
    if isinstance(schema, list):
        return [_complete(branch, named) for branch in schema]
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    return schema if isinstance(schema, str) else schema | {"__fastavro_parsed": True, "__named_schemas": named}


def _inspect(schema: Any, named: dict[str, Any], records: dict[str, tuple[bool, bool]]) -> tuple[bool, bool]:
    """Return whether a type is recursive or contains a recursive type, and whether all of its values are encoded in
    zero bytes. ``named``: the named types by full name. ``records``: the results by record, to which this adds. Raises
    `SerializationError` for an array of items without bytes, and for nested records without bytes."""
    if isinstance(schema, str):
        return _inspect(named[schema], named, records) if schema in named else (False, schema == "null")
    if isinstance(schema, list):
        branches = [_inspect(branch, named, records) for branch in schema]
        return any(recursive for recursive, _ in branches), False
    kind, name = schema["type"], schema.get("name", "")
    if kind in ("array", "map"):
        recursive, empty = _inspect(schema["items" if kind == "array" else "values"], named, records)
        if kind == "array" and empty:
            raise SerializationError("an array of items of zero bytes is refused: a short value can have billions")
        return recursive, False
    if kind not in ("record", "error"):
        return False, kind == "null" or schema.get("size") == 0
    if name not in records:
        records[name] = True, False  # the result while its own fields are inspected
        fields = [_inspect(field["type"], named, records) for field in schema["fields"]]
        records[name] = any(recursive for recursive, _ in fields), all(empty for _, empty in fields)
        if records[name][1] and any(field["type"] != "null" for field in schema["fields"]):
            raise SerializationError("nested records without bytes are refused: a value can have billions")
    return records[name]
