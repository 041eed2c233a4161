# SPDX-License-Identifier: Apache-2.0
"""The mapping file (TOML): which table receives which parts of a topic's messages. Reports all its faults together."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TOPIC_NAME_RULE, is_topic_name
from monasca_common.sink.values import TYPES, ColumnType, Steps

MESSAGE_ID, ELEMENT_INDEX = "message_id", "element_index"
_MAX_NAME_BYTES = 63  # PostgreSQL cuts longer names
_PATH = re.compile(r'\.(?:"([^"]+)"|([^."\[\]]+))|\[(\d+)\]')


class Mode(StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete-on-tombstone"


class MessagePart(StrEnum):
    """The parts of a message that columns are read from."""

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


_WITH_PATH = (MessagePart.VALUE, MessagePart.ELEMENT, MessagePart.KEY)
_OF_ELEMENTS = (MessagePart.ELEMENT, MessagePart.INDEX)
# A deletion has no value, so its row is found by these.
_OF_DELETIONS = (MessagePart.KEY, MessagePart.HEADER, MessagePart.TOPIC, MessagePart.PARTITION)


class ColumnSource(NamedTuple):
    """Where a column's value is. ``header``: the name of the header."""

    part: MessagePart
    steps: Steps = ()
    header: str = ""


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """``default`` replaces a missing value or null; ``required``: a message without a value is refused."""

    name: str
    type: ColumnType
    source: ColumnSource
    required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class TableMapping:
    """A table, and the topic whose messages are its rows. ``key``: the names of the columns of its primary key.

    ``each``: the path of an array in the value, of which each element is a row; ``None``: one row per message.
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
    def key_positions(self) -> tuple[int, ...]:
        names = [column.name for column in self.columns]
        return tuple(names.index(name) for name in self.key)


class InvalidMapping(ConfigurationError):
    """A mapping file has faults, each with its entry, rule and remedy."""

    def __init__(self, file: Path, faults: Sequence[str]) -> None:
        super().__init__("\n".join(f"{file}: {fault}" for fault in faults))
        self.faults = tuple(faults)


def read_mapping(file: Path) -> tuple[TableMapping, ...]:
    """Return the tables of a mapping file. Raises `InvalidMapping`."""
    try:
        text = file.read_text(encoding="utf-8")
        entries = tomllib.loads(text)
    except OSError as error:
        raise InvalidMapping(file, [f"cannot be read ({error.strerror}): correct mapping_file"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidMapping(file, [f"is not TOML ({error}): correct it"]) from None
    faults: list[str] = []
    tables = [_Entry(name, entry, faults).table() for name, entry in entries.items()]
    if not tables:
        faults.append("has no table: add an entry such as [orders] with topic and [orders.columns]")
    folded = [name.casefold() for name in entries]
    faults += [f"[{name}] is there twice, because case is ignored: rename one" for name in _repeated(folded)]
    if faults:
        raise InvalidMapping(file, faults)
    return tuple(table for table in tables if table is not None)


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


class _Entry:
    """One table of the file, and its faults."""

    _FIELDS = (*("topic", "mode", "key", "each", "serializer", "message_type", "key_serializer", "columns"),)
    _COLUMN_FIELDS = ("type", "from", "required", "default")

    def __init__(self, name: str, entry: Any, faults: list[str]) -> None:
        self._name = name
        self._entry = entry if isinstance(entry, dict) else {}
        self._faults = faults
        if not isinstance(entry, dict):
            self._fault("", f"is {type(entry).__name__}, not a table: write [{name}] and its fields below")

    def table(self) -> TableMapping | None:
        """Return the table; ``None`` if it has faults."""
        before = len(self._faults)
        self._check_name("", self._name)
        if self._name.casefold() in own_tables():
            self._fault("", "is a table of this program: name another table")
        self._only("", self._entry, self._FIELDS)
        topic = self._text("topic")
        if topic is not None and not is_topic_name(topic):
            self._fault("topic", f"is {topic!r}: {TOPIC_NAME_RULE}")
        mode = self._mode()
        each = self._each()
        columns = list(self._columns(by_element=each is not None))
        key = self._key(columns, mode, each)
        table = TableMapping(
            self._name,
            topic or "",
            mode,
            self._text("serializer", "json") or "",
            self._text("message_type", "") or None,
            self._text("key_serializer", "json") or "",
            each,
            *self._with_ids(columns, key, by_element=each is not None),
        )
        return table if len(self._faults) == before else None

    def _with_ids(
        self, columns: list[SinkColumn], key: tuple[str, ...], *, by_element: bool
    ) -> tuple[tuple[SinkColumn, ...], tuple[str, ...]]:
        """Add the row id, which is the key of a table without ``key``."""
        if key:
            return tuple(replace_required(column, key) for column in columns), key
        ids = [SinkColumn(MESSAGE_ID, TYPES["bytes"], ColumnSource(MessagePart.MESSAGE_ID), required=True)]
        if by_element:
            ids.append(SinkColumn(ELEMENT_INDEX, TYPES["integer"], ColumnSource(MessagePart.INDEX), required=True))
        for column in columns:
            if column.name.casefold() in {each.name for each in ids}:
                self._fault(f"columns.{column.name}", "is the name of the row id: rename it, or set key")
        return (*ids, *columns), tuple(each.name for each in ids)

    def _columns(self, *, by_element: bool) -> Iterator[SinkColumn]:
        columns = self._entry.get("columns")
        if not isinstance(columns, dict) or not columns:
            self._fault("columns", 'is missing: name at least one column, such as id = "integer"')
            return
        for name in _repeated([name.casefold() for name in columns]):
            self._fault(f"columns.{name}", "is there twice, because case is ignored: rename one")
        for name, given in columns.items():
            where = f"columns.{name}"
            self._check_name(where, name)
            fields = {"type": given} if isinstance(given, str) else given
            if not isinstance(fields, dict):
                self._fault(where, 'is neither a type nor a table: write "text" or {type = "text", from = "key"}')
                continue
            self._only(where, fields, self._COLUMN_FIELDS)
            kind = fields.get("type")
            if not isinstance(kind, str) or kind not in TYPES:
                self._fault(where, f"has type {kind!r}: use one of {', '.join(TYPES)}")
                continue
            default = "element" if by_element else "value"
            source = self._source(where, fields.get("from", f'{default}."{name}"'), by_element=by_element)
            required, replacement = fields.get("required", False), fields.get("default")
            if not isinstance(required, bool):
                self._fault(where, "has a required that is neither true nor false: write one of them")
            if required and replacement is not None:
                self._fault(where, "is required and has a default, which would never be used: remove one")
            if replacement is not None:
                try:
                    replacement = TYPES[kind].convert(replacement)
                except ValueError as error:
                    self._fault(where, f"has a default that {error}: write a value of type {kind}")
            if source is not None:
                yield SinkColumn(name, TYPES[kind], source, bool(required), replacement)

    def _source(self, where: str, text: Any, *, by_element: bool) -> ColumnSource | None:
        name, _, rest = text.partition(".") if isinstance(text, str) else ("", "", "")
        name = name.partition("[")[0]
        if name not in list(MessagePart):
            known = "value, value.<path>, key, key.<path>, header.<name>, " + ", ".join(list(MessagePart)[4:])
            self._fault(where, f"has from = {text!r}: use one of {known}, or element.<path> with each")
            return None
        part = MessagePart(name)
        if part in _OF_ELEMENTS and not by_element:
            self._fault(where, f"reads {text!r}, but the entry has no each: name the path of an array in each")
        if part is MessagePart.HEADER:
            if not rest:
                self._fault(where, "reads a header without a name: write header.<name>")
            return ColumnSource(part, header=rest)
        steps = self._steps(where, text, text[len(name) :])
        if steps and part not in _WITH_PATH:
            self._fault(where, f"has from = {text!r}: {name} has no path, so write {name!r}")
        return ColumnSource(part, steps)

    def _steps(self, where: str, text: str, path: str) -> Steps:
        steps: list[str | int] = []
        position = 0
        while position < len(path):
            found = _PATH.match(path, position)
            if found is None:
                self._fault(where, f'has the path {text!r}: write names as .name or ."a name", and positions as [0]')
                return ()
            quoted, plain, index = found.groups()
            steps.append(int(index) if index else quoted or plain)
            position = found.end()
        return tuple(steps)

    def _each(self) -> Steps | None:
        each = self._text("each", "")
        if not each:
            return None
        if each != "value" and not each.startswith(("value.", "value[")):
            self._fault("each", f"is {each!r}: write value.<path> of an array, or value")
        return self._steps("each", each, each.removeprefix("value"))

    def _mode(self) -> Mode:
        mode = self._text("mode", Mode.INSERT)
        if mode not in list(Mode):
            self._fault("mode", f"is {mode!r}: use one of {', '.join(Mode)}")
            return Mode.INSERT
        return Mode(mode)

    def _key(self, columns: Sequence[SinkColumn], mode: Mode, each: Steps | None) -> tuple[str, ...]:
        key = self._entry.get("key", [])
        if not isinstance(key, list) or not all(isinstance(name, str) for name in key):
            self._fault("key", 'is not an array of names: write key = ["id"]')
            return ()
        by_name = {column.name: column for column in columns}
        for name in dict.fromkeys(key):
            column = by_name.get(name)
            if column is None:
                self._fault("key", f"names {name!r}, which is not in columns: add the column, or correct the name")
            elif not column.type.is_key:
                kinds = ", ".join(each.name for each in TYPES.values() if each.is_key)
                self._fault("key", f"names {name!r} of type {column.type.name}: a key has columns of {kinds}")
            elif mode is Mode.DELETE and column.source.part not in _OF_DELETIONS:
                self._fault(
                    "key", f"names {name!r}, but a deletion has no value: read it from {', '.join(_OF_DELETIONS)}"
                )
        if len(set(key)) != len(key):
            self._fault("key", "names a column twice: remove one")
        if mode is not Mode.INSERT and not key:
            self._fault("key", f"is missing, which mode {mode} needs to find rows: name the columns of the primary key")
        if mode is Mode.DELETE and each is not None:
            self._fault("each", f"is not possible with mode {mode}, because a deletion has no array: remove one")
        return tuple(key)

    def _text(self, field: str, default: str | None = None) -> str | None:
        value = self._entry.get(field, default)
        if isinstance(value, str) and (value or default == ""):
            return value
        self._fault(field, "is missing: set it" if value is None else f"is {value!r}: write a text")
        return None

    def _check_name(self, where: str, name: str) -> None:
        if not name or "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
            self._fault(where, f"has a name that databases do not support: use 1 to {_MAX_NAME_BYTES} bytes")

    def _only(self, where: str, fields: Mapping[str, Any], known: Sequence[str]) -> None:
        for field in sorted(fields.keys() - set(known)):
            self._fault(where, f"has an unknown field {field!r}: use {', '.join(known)}")

    def _fault(self, where: str, rule: str) -> None:
        place = f"[{self._name}]" if not where else f"[{self._name}] {where}"
        self._faults.append(f"{place} {rule}")


def own_tables() -> frozenset[str]:
    from monasca_common.storage.sql.tables import metadata  # needs an extra

    return frozenset(metadata.tables) | {"alembic_version", "oldest_program"}


def replace_required(column: SinkColumn, key: Sequence[str]) -> SinkColumn:
    """Return the column; one of the key without a default is required."""
    required = column.required or (column.name in key and column.default is None)
    return SinkColumn(column.name, column.type, column.source, required, column.default)
