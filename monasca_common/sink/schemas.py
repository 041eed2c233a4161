# SPDX-License-Identifier: Apache-2.0
"""Compares the columns of a table with the latest registered schemas of its topic: finds fields that a schema does not
have, and fields whose values a column cannot store."""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from monasca_common.kafka.errors import SchemaRefused, SerializationError
from monasca_common.kafka.serialization.base import SerializationContext
from monasca_common.sink.decoder import TopicDecoder
from monasca_common.sink.fields import Steps
from monasca_common.sink.mapping import MessagePart, SinkColumn, TableMapping

_RECORDS = ("record", "error")
# Examples of decoded values by schema type. A column can store a type if it can store one of its examples.
_TEXTS, _BYTES = ("1", "2026-01-31T06:00:00Z"), (b"1", b"true", b"2026-01-31T06:00:00Z")
_TIMES = (datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC),)
_ANYTHING: Sequence[Any] = (*_TEXTS, *_BYTES, *_TIMES, 1.5, 1, True, {}, [])
_VALUES: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(("string", "enum"), _TEXTS),
    **dict.fromkeys(("bytes", "fixed"), _BYTES),
    **dict.fromkeys(("int", "long", "integer"), (1,)),
    **dict.fromkeys(("float", "double"), (1.5,)),
    **dict.fromkeys(("timestamp", "local-timestamp"), _TIMES),
    **dict.fromkeys((*_RECORDS, "map", "object"), ({},)),
    "boolean": (True,),
    "number": (1, 1.5),
    "array": ([],),
    "null": (),
    "decimal": (decimal.Decimal(1),),
    "uuid": (uuid.UUID(int=1),),
    "date": (datetime.date(2026, 1, 31),),
    "time": (datetime.time(6),),
}
_UNKNOWN = object()  # a type without a definition here, which may have any field


class SchemaFinding(NamedTuple):
    """A difference. ``effect``: the effect on messages with this schema, or ``""`` if it is unknown."""

    text: str
    effect: str


class _SchemaFields(ABC):
    """The fields of a schema. A node is one type of a union, without references."""

    root: Any

    @abstractmethod
    def nodes(self, schema: Any) -> Iterable[Any]: ...

    @abstractmethod
    def members(self, node: Any, step: str | int) -> Iterable[Any]:
        """Return the schemas of a field, or of an item of an array."""

    @abstractmethod
    def values(self, node: Any) -> Sequence[Any]: ...

    def at(self, steps: Steps) -> list[Any] | None:
        """Return examples of values of the field at a path, or ``None`` if the schema does not have the field."""
        nodes = list(self.nodes(self.root))
        for step in steps:
            members = [] if _UNKNOWN in nodes else [each for node in nodes for each in self.members(node, step)]
            nodes = [_UNKNOWN] if _UNKNOWN in nodes else [node for each in members for node in self.nodes(each)]
        values = [value for node in nodes for value in (_ANYTHING if node is _UNKNOWN else self.values(node))]
        return values if nodes else None


class _AvroFields(_SchemaFields):
    def __init__(self, parsed: Any) -> None:
        self.root = parsed
        self._named = parsed.get("__named_schemas", {}) if isinstance(parsed, dict) else {}

    def nodes(self, schema: Any) -> Iterable[Any]:
        if isinstance(schema, list):
            return [node for each in schema for node in self.nodes(each)]
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema} if schema in _VALUES else _UNKNOWN)
        return [schema]

    def members(self, node: Any, step: str | int) -> Iterable[Any]:
        if node["type"] in _RECORDS:
            return [each["type"] for each in node["fields"] if each["name"] == step]
        container, items = ("map", "values") if isinstance(step, str) else ("array", "items")
        return [node[items]] if node["type"] == container else []

    def values(self, node: Any) -> Sequence[Any]:
        logical = str(node.get("logicalType")).removesuffix("-millis").removesuffix("-micros")  # -nanos are integers
        return _VALUES.get(logical) or _VALUES[node["type"]]


class _JsonFields(_SchemaFields):
    def __init__(self, validator: Any) -> None:
        self.root = validator.schema

    def nodes(self, schema: Any, seen: tuple[int, ...] = ()) -> Iterator[Any]:
        if not isinstance(schema, dict):
            yield from [_UNKNOWN] if schema else []
        elif id(schema) not in seen:
            parts = [each for name in ("anyOf", "oneOf", "allOf") for each in schema.get(name, ())]
            parts += [self._referred(schema["$ref"])] if "$ref" in schema else []
            for each in parts:
                yield from self.nodes(each, (*seen, id(schema)))
            if not parts or "properties" in schema:
                yield schema

    def _referred(self, reference: str) -> Any:
        found = self.root if reference.startswith("#/") else (reference == "#" and self.root) or True
        for name in reference.split("/")[1:] if reference.startswith("#/") else ():
            found = found.get(name.replace("~1", "/").replace("~0", "~"), True) if isinstance(found, dict) else True
        return found

    def members(self, node: Any, step: str | int) -> Iterable[Any]:
        if ("array" if isinstance(step, int) else "object") not in node.get("type", ("array", "object")):
            return []
        if isinstance(step, int):
            items = node.get("prefixItems", node.get("items", True))
            return items[step : step + 1] if isinstance(items, list) else [items]
        named, more = node.get("properties", {}), node.get("additionalProperties", "object" in node.get("type", ()))
        if step in named:
            return [named[step]]
        found = [each for pattern, each in node.get("patternProperties", {}).items() if re.search(pattern, step)]
        return found or ([more] if isinstance(more, dict) or not named else [])

    def values(self, node: Any) -> Sequence[Any]:
        kinds = node.get("type", "object" if "properties" in node else ())
        named = [value for kind in ([kinds] if isinstance(kinds, str) else kinds) for value in _VALUES[kind]]
        return node.get("enum") or ([node["const"]] if "const" in node else named or _ANYTHING)


class _ProtobufFields(_SchemaFields):
    """The fields that are both in the schema's text and in the generated class, which decodes every version of its
    message. A node consists of a descriptor and a flag for an array or a map."""

    def __init__(self, generated: Any, text: str) -> None:
        self.root = (generated.DESCRIPTOR, False)
        self._names = _protobuf_names(text)

    def nodes(self, schema: Any) -> Iterable[Any]:
        return [schema]

    def members(self, node: Any, step: str | int) -> Iterable[Any]:
        field, repeats = node
        message = getattr(field, "message_type", field)  # the root is a message
        is_map = repeats and message is not None and message.GetOptions().map_entry
        if repeats and (is_map or isinstance(step, int)):
            return [(message.fields_by_name["value"] if is_map else field, False)]
        found = None if repeats or message is None else message.fields_by_name.get(step)
        if found is None or step not in self._names.get(message.full_name, (step,)):
            return []
        return [(found, isinstance(found.default_value, list))]

    def values(self, node: Any) -> Sequence[Any]:
        field, repeats = node
        message = getattr(field, "message_type", field)
        if repeats or message is not None:
            is_time = message is not None and message.full_name == "google.protobuf.Timestamp" and not repeats
            return _TIMES if is_time else _VALUES["array" if repeats else "object"]
        kinds = {field.TYPE_STRING: "string", field.TYPE_BYTES: "bytes", field.TYPE_BOOL: "boolean"}
        kinds |= dict.fromkeys((field.TYPE_FLOAT, field.TYPE_DOUBLE), "double")
        return _VALUES[kinds.get(field.type, "integer")]


_IGNORED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|//[^\n]*|/\*.*?\*/|\[[^\]]*\]", re.DOTALL)


def _protobuf_names(text: str) -> dict[str, set[str]]:
    """Return the field names of each message in the text of a file for protoc."""
    names: dict[str, set[str]] = {}
    text = _IGNORED.sub(" ", text)
    package = re.search(r"\bpackage\s+([\w.]+)\s*;", text)
    within = [package[1] if package else ""]
    for statement, end in re.findall(r"([^;{}]*)([;{}])", text):
        words = statement.split()
        if end == "{" and words[:1] == ["message"]:
            within.append(f"{within[-1]}.{words[1]}".lstrip("."))
            names[within[-1]] = set()
        elif end == "{":
            within.append(within[-1] if words[:1] == ["oneof"] else "")
        elif end == "}":
            within = within[:-1] or [""]
        elif field := re.search(r"(\w+)\s*=\s*\d+\s*$", statement):
            names.get(within[-1], set()).add(field[1])
    return names


def schema_findings(decoder: TopicDecoder, table: TableMapping) -> Iterator[SchemaFinding]:
    """Yield the differences between a table and the latest schemas of its keys and values, if their formats have any.

    Raises `RegistryUnavailable`.
    """
    fields: Literal["value", "key"]
    for fields in ("value", "key"):
        reads, serializer = list(_reads(table, fields)), decoder.serializer(table, fields)
        if reads and hasattr(serializer, "registry"):
            try:
                yield from _compared(reads, *_latest(serializer, table.topic, fields))
            except SerializationError as error:
                # Producers may register the schema with their first message. If a schema cannot be read, every message
                # would become a dead letter.
                effect = "" if isinstance(error, SchemaRefused) else "refused"
                yield SchemaFinding(f"the latest schema of its {fields}s is not compared: {error}", effect)


def _compared(
    reads: Sequence[tuple[str, Steps, SinkColumn | None]], place: str, schema: _SchemaFields | None
) -> Iterator[SchemaFinding]:
    if schema is None:
        yield SchemaFinding(place, "")
        return
    for name, steps, column in reads:
        values = schema.at(steps)
        if values is None:
            effect = "dead letter" if column and column.required else "not stored"
            yield SchemaFinding(f"{name}, which {place} does not have: correct the path or the schema", effect)
        elif values and (reason := _misfit(column, values)):
            yield SchemaFinding(f"{name}, which {reason} in {place}: correct the type or the path", "dead letter")


def _reads(table: TableMapping, which: str) -> Iterator[tuple[str, Steps, SinkColumn | None]]:
    """Yield (description, path, column) for each read of the value or key; the column is ``None`` for ``each``."""
    if table.each is not None and which == "value":
        yield f"each reads {_shown(which, table.each)}", table.each, None
    for column in table.columns:
        part, steps, _ = column.source
        element = (*(table.each or ()), 0) if part is MessagePart.ELEMENT else ()
        if (part == which and (steps or which == "value")) or (element and which == "value"):
            yield f"column {column.name!r} reads {_shown(part, steps)}", (*element, *steps), column


def _shown(part: str, steps: Steps) -> str:
    return part + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _misfit(column: SinkColumn | None, values: Sequence[Any]) -> str:
    if column is None:
        return "" if [] in values else "is not an array"
    reasons = column.type.converted(values)[1]
    return reasons[0] if len(reasons) == len(values) else ""


def _latest(serializer: Any, topic: str, which: Literal["key", "value"]) -> tuple[str, _SchemaFields | None]:
    """Return a name for the schema that columns read, and the schema's fields. Raises `SerializationError`."""
    settings, kind = serializer.registry.settings, serializer.schema_type
    name, subject = SerializationContext(topic, which).option_name, f"{topic}-{which}"
    if reader := getattr(serializer, "readers", {}).get(name):
        return "the schema of reader_schema_files", _AvroFields(reader)
    strategy = settings.topic_strategies.get(name, settings.subject_name_strategy)
    if strategy not in (None, "topic"):
        file = settings.schema_files.get(name)
        if file is None and kind != "PROTOBUF":
            needs = f"the strategy {strategy} of its subject needs the file of {name} in schema_files"
            return f"the schema of its {which}s is not compared: {needs}", None
        written = serializer.read_schema("schema_files", file)[1] if file else ""
        subject = settings.subject(name, lambda: serializer.record_name(written))
    schema = serializer.registry.resolve(subject)[1]
    place = f"the latest schema of {subject}"
    if kind == "PROTOBUF":
        return f"{place}, or the generated class,", _ProtobufFields(serializer.message_type, schema)
    return place, _JsonFields(schema) if kind == "JSON" else _AvroFields(schema.parsed)
