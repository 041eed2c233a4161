# SPDX-License-Identifier: Apache-2.0
"""Encodes rows in PostgreSQL's binary COPY format, which is four times faster to write than the text format.

A row consists of the number of its fields (int16), then each field preceded by its length (int32; -1 is NULL),
big-endian. A row's key comes first, so sorting encoded rows sorts them by key. Rows are always sorted: inserting keys
in the order of the index takes a third less time, and two writers of the same keys wait for each other instead of
deadlocking.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from monasca_common.storage.reduction import MeasurementRow
from monasca_common.storage.sql.writer import KEYED_COLUMNS

_HEADER = b"PGCOPY\n\xff\r\n\0" + Struct("!ii").pack(0, 0)
_TRAILER = Struct("!h").pack(-1)
_LENGTH = Struct("!i").pack
_NULL = _LENGTH(-1)
_JSONB_VERSION = b"\x01"

# series_id, time, value, value_meta, version
_pack_plain = Struct("!hi16siqidiiq").pack
_pack_until_meta = Struct("!hi16siqidi").pack
_pack_version = Struct("!iq").pack
_pack_key = Struct("!hiq").pack

_JSON_COLUMNS = frozenset({"metrics", "sub_alarms", "dimensions", "fields", "payload"})


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """A table whose rows are keyed by (time, message_id)."""

    name: str
    columns: tuple[str, ...]

    @property
    def json_positions(self) -> frozenset[int]:
        """The positions of JSON columns after the key."""
        return frozenset(at for at, column in enumerate(self.columns[2:]) if column in _JSON_COLUMNS)


KEYED_TABLES = {kind: KeyedTable(str(kind), columns) for kind, columns in KEYED_COLUMNS.items()}


def measurements(rows: Iterable[MeasurementRow]) -> bytes:
    """Encode rows of ``(series_id, time_ms, value, value_meta, version)``."""
    pack, with_meta = _pack_plain, _with_meta
    encoded = [
        pack(5, 16, series, 8, time, 8, value, -1, 8, version)
        if meta is None
        else with_meta(series, time, value, meta, version)
        for series, time, value, meta, version in rows
    ]
    return _copy(encoded)


def keyed(table: KeyedTable, rows: Iterable[tuple[Any, ...]]) -> bytes:
    """Encode rows of ``(time_ms, message_id, …)``, with text, JSON text or ``None`` after the key."""
    count, json_positions = len(table.columns), table.json_positions
    encoded = []
    for time, message_id, *texts in rows:
        parts = [_pack_key(count, 8, time), _LENGTH(len(message_id)), message_id]
        for position, text in enumerate(texts):
            if text is None:
                parts.append(_NULL)
                continue
            content = text.encode()
            if position in json_positions:
                content = _JSONB_VERSION + content
            parts += (_LENGTH(len(content)), content)
        encoded.append(b"".join(parts))
    return _copy(encoded)


def _with_meta(series: bytes, time: int, value: float, meta: str, version: int) -> bytes:
    content = meta.encode()
    head = _pack_until_meta(5, 16, series, 8, time, 8, value, len(content) + 1)
    return head + _JSONB_VERSION + content + _pack_version(8, version)


def _copy(encoded: list[bytes]) -> bytes:
    encoded.sort()
    return b"".join([_HEADER, *encoded, _TRAILER])


def jsonb_text(text: str) -> str:
    """Return a JSON object of strings as PostgreSQL writes jsonb, so that rows compare as they do in the database."""
    return json.dumps(_in_order(json.loads(text)), ensure_ascii=False, separators=(", ", ": "))


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: _in_order(value[key]) for key in keys}
    return [_in_order(each) for each in value] if isinstance(value, list) else value


def first_of_each_key(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows of ``(time_ms, message_id, …)``, with only the first row of each key."""
    return list({row[:2]: row for row in reversed(rows)}.values())
