# SPDX-License-Identifier: Apache-2.0
"""The mapping file (TOML), which assigns the parts of a topic's messages to tables. All its faults are reported
together."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TOPIC_NAME_RULE, is_topic_name
from monasca_common.sink.fields import Steps
from monasca_common.storage.tables.column_types import TYPES, ColumnType

E = TypeVar("E")

MESSAGE_TYPES = "monasca_common.sink.message_types"  # the group of entry points that ``message_type`` names
_MAX_NAME_BYTES = 63  # PostgreSQL truncates longer names
_PATH = re.compile(r'\.(?:"([^"]+)"|([^."\[\]]+))|\[(\d+)\]')
_MANY = "is defined twice, because case is ignored: rename one"


class Mode(StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete-on-tombstone"


class MessagePart(StrEnum):
    """The parts of a message from which columns are read."""

    VALUE = "value"
    ELEMENT = "element"
    KEY = "key"
    HEADER = "header"
    TIMESTAMP = "timestamp"
    PARTITION = "partition"
    OFFSET = "offset"
    TOPIC = "topic"
    MESSAGE_ID = "message_id"
    INDEX = "index"


_WITH_PATH = (MessagePart.VALUE, MessagePart.ELEMENT, MessagePart.KEY, MessagePart.HEADER)
_EXAMPLES: Mapping[MessagePart, Any] = {
    **dict.fromkeys((MessagePart.TIMESTAMP, MessagePart.PARTITION, MessagePart.OFFSET, MessagePart.INDEX), 0),
    MessagePart.TOPIC: "orders",
}
# A deletion has no value, so these parts identify its row.
_OF_DELETIONS = (MessagePart.KEY, MessagePart.HEADER, MessagePart.TOPIC, MessagePart.PARTITION)


class ColumnSource(NamedTuple):
    """The source of a column's value. ``header``: the name of the header."""

    part: MessagePart
    steps: Steps = ()
    header: str = ""


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """A column. ``default`` replaces a missing or null value. ``required``: a message without a value is refused."""

    name: str
    type: ColumnType
    source: ColumnSource
    required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class TableMapping:
    """A table, and the topic whose messages are its rows. ``key``: the names of the columns of its primary key.

    ``each``: the path of an array in the value, whose elements are rows, or ``None`` for one row per message.
    """

    name: str
    topic: str
    mode: Mode
    serializer: str
    message_type: str | None
    key_serializer: str
    each: Steps | None
    columns: tuple[SinkColumn, ...]
    key: tuple[str, ...]

    @property
    def keeps_first(self) -> bool:
        return self.mode is Mode.INSERT


class InvalidMapping(ConfigurationError):
    """A mapping file has faults, each with its entry, rule and remedy."""

    def __init__(self, file: Path, faults: Sequence[str]) -> None:
        super().__init__("\n".join(f"{file}: {fault}" for fault in faults))
        self.faults = tuple(faults)


class _TableEntry(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    columns: dict[str, Any]
    mode: str = Mode.INSERT
    key: list[str] = []
    each: str | None = None
    serializer: str = "json"
    message_type: str | None = None
    key_serializer: str = "json"


class _ColumnEntry(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    from_: str | None = msgspec.field(default=None, name="from")
    required: bool = False
    default: Any = None


# The columns of the row id, which is the key of a table without ``key``.
_ROW_ID = (
    SinkColumn("message_id", TYPES["bytes"], ColumnSource(MessagePart.MESSAGE_ID), required=True),
    SinkColumn("element_index", TYPES["integer"], ColumnSource(MessagePart.INDEX), required=True),
)


def read_mapping(file: Path) -> tuple[TableMapping, ...]:
    """Return the tables of a mapping file. Raises `InvalidMapping`."""
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidMapping(file, [f"cannot be read ({error.strerror}): correct mapping_file"]) from None
    except ValueError as error:
        raise InvalidMapping(file, [f"is not TOML ({error}): correct it"]) from None
    reader = _MappingReader()
    tables = [reader.table(name, entry) for name, entry in entries.items()]
    reader.faults += [f"[{name}] {_MANY}" for name in _repeated(entries)]
    if not tables:
        reader.faults.append("has no table: add an entry such as [orders] with topic and [orders.columns]")
    if reader.faults:
        raise InvalidMapping(file, reader.faults)
    return tuple(tables)


def _repeated(names: Sequence[str] | dict[str, Any]) -> list[str]:
    folded = [name.casefold() for name in names]
    return sorted({name for name in folded if folded.count(name) > 1})


class _MappingReader:
    """Reads tables and collects their faults. A faulty table is used only to find its other faults."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._table = ""

    def table(self, name: str, given: Any) -> TableMapping:
        from monasca_common.storage.sql.tables import metadata  # SQLAlchemy requires an extra

        self._table = name
        self._check_name("", name)
        if name.casefold() in {*metadata.tables, "alembic_version"}:
            self._fault("", "is a table of this program: name another table")
        entry = self._converted("", given, _TableEntry) or _TableEntry("unknown", {})
        if entry.mode not in list(Mode):
            self._fault("mode", f"is {entry.mode!r}: use one of {', '.join(Mode)}")
            entry.mode = Mode.INSERT
        if not is_topic_name(entry.topic):
            self._fault("topic", f"is {entry.topic!r}: {TOPIC_NAME_RULE}")
        each: Steps | None = None
        if entry.each is not None and re.match(r"value(?=[.\[]|$)", entry.each):
            each = self._steps("each", entry.each.removeprefix("value"))
        elif entry.each is not None:
            self._fault("each", f"is {entry.each!r}: write value.<path> of an array, or value")
        if entry.serializer == "protobuf" and entry.message_type is None:
            self._fault("message_type", "is missing, but serializer protobuf needs it: name a generated class")
        columns = list(self._columns(entry))
        if isinstance(given, dict) and given.get("columns") == {}:
            self._fault("columns", 'is empty: name at least one column, such as id = "integer"')
        key = tuple(entry.key)
        if key:
            self._check_key(entry, columns)
        else:
            ids = _ROW_ID if entry.each is not None else _ROW_ID[:1]
            for taken in sorted({column.name for column in ids} & {name.casefold() for name in entry.columns}):
                self._fault(f"columns.{taken}", "is the row id of a table without key: rename it, or set key")
            key, columns = tuple(column.name for column in ids), [*ids, *columns]
            if entry.mode != Mode.INSERT:
                self._fault("key", f"is missing, but mode {entry.mode} needs it: name the columns of the primary key")
        if entry.mode == Mode.DELETE and each is not None:
            rule = f"is not possible with mode {entry.mode}, because a deletion has no array: remove one of the two"
            self._fault("each", rule)
        for repeated in _repeated([column.name for column in columns]):
            self._fault(f"columns.{repeated}", _MANY)
        required = [replace(each, required=each.required or each.name in key) for each in columns]
        formats = entry.serializer, entry.message_type, entry.key_serializer
        return TableMapping(name, entry.topic, Mode(entry.mode), *formats, each, tuple(required), key)

    def _columns(self, entry: _TableEntry) -> Iterator[SinkColumn]:
        for name, given in entry.columns.items():
            where = f"columns.{name}"
            self._check_name(where, name)
            fields = self._converted(where, {"type": given} if isinstance(given, str) else given, _ColumnEntry)
            if fields is None:
                continue
            kind = TYPES.get(fields.type)
            if kind is None:
                self._fault(where, f"has type {fields.type!r}: use one of {', '.join(TYPES)}")
                continue
            default = fields.default
            try:
                default = None if default is None else kind.convert(default)
            except ValueError as error:
                remedy = f"write a value of type {kind.name}" if kind.name != "bytes" else "remove it"  # TOML has none
                self._fault(where, f"has a default that {error}: {remedy}")
            if default is not None and (fields.required or name in entry.key):
                self._fault(where, "is required and has a default, which would never be used: remove one of the two")
            text = f'{"value" if entry.each is None else "element"}."{name}"' if fields.from_ is None else fields.from_
            source = self._source(where, text, entry)
            if wrong := kind.converted([_EXAMPLES[source.part]])[1] if source.part in _EXAMPLES else {}:
                self._fault(where, f"reads {text}, which {wrong[0]}: use another type")
            yield SinkColumn(name, kind, source, fields.required, default)

    def _source(self, where: str, text: str, entry: _TableEntry) -> ColumnSource:
        name = re.split(r"[.\[]", text, maxsplit=1)[0]
        path = text[len(name) :]
        header = re.fullmatch(r'\."([^"\0]+)"|\.([^"\0]+)', path)  # clients do not read names with NUL
        is_unnamed = name == MessagePart.HEADER and header is None
        if name not in list(MessagePart) or (path and name not in _WITH_PATH) or is_unnamed:
            known = "value, key, header.<name>, timestamp, partition, offset, topic, message_id"
            rule = f"use one of {known}, or, with each, element or index; value, key and element may have a path"
            self._fault(where, f"has from = {text!r}: {rule}")
            return ColumnSource(MessagePart.KEY)
        part = MessagePart(name)
        if part in (MessagePart.ELEMENT, MessagePart.INDEX) and entry.each is None:
            self._fault(where, f"reads {text!r}, but the entry has no each: name the path of an array in each")
        if part is MessagePart.HEADER and header is not None:
            return ColumnSource(part, header=header[1] or header[2])
        return ColumnSource(part, self._steps(where, path))

    def _steps(self, where: str, path: str) -> Steps:
        found = list(_PATH.finditer(path))
        if "".join(each[0] for each in found) != path:
            self._fault(where, f'has the path {path!r}: write names as .name or ."a name", and positions as [0]')
        return tuple(int(index) if index else quoted or plain for quoted, plain, index in (f.groups() for f in found))

    def _check_key(self, entry: _TableEntry, columns: Sequence[SinkColumn]) -> None:
        by_name = {column.name: column for column in columns}
        for name in _repeated(entry.key):
            self._fault("key", f"names {name!r} twice: remove one")
        for name in entry.key:
            column = by_name.get(name)
            if column is None:
                self._fault("key", f"names {name!r}, which is not in columns: add the column, or correct the name")
            elif not column.type.is_key:
                kinds = ", ".join(each.name for each in TYPES.values() if each.is_key)
                self._fault("key", f"names {name!r} of type {column.type.name}: a key has columns of {kinds}")
            elif entry.mode == Mode.DELETE and column.source.part not in _OF_DELETIONS:
                parts = ", ".join(_OF_DELETIONS)
                self._fault("key", f"names {name!r}, but a deletion has no value: read it from {parts}")

    def _converted(self, where: str, given: Any, kind: type[E]) -> E | None:
        try:
            return msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            fields = ", ".join(each.encode_name for each in msgspec.structs.fields(kind))  # type: ignore[arg-type]
            rule = str(error).replace("Object", "Table").replace("`object`", "`table`").replace("`str`", "`text`")
            self._fault(where, f"is refused ({rule}): write a table with fields of {fields}")
            return None

    def _check_name(self, where: str, name: str) -> None:
        if not name or "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
            self._fault(where, f"has a name that databases do not support: use 1 to {_MAX_NAME_BYTES} bytes")

    def _fault(self, where: str, rule: str) -> None:
        self.faults.append(f"[{self._table}] {where} {rule}" if where else f"[{self._table}] {rule}")
