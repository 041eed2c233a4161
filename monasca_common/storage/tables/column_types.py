# SPDX-License-Identifier: Apache-2.0
"""The types of columns. Values are checked column by column, which takes little time for usual values."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import math
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import msgspec
import orjson

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column type. ``convert`` returns the value to store, or raises `ValueError` with a text that ends a sentence.

    ``plain``: the Python type whose values are stored unchanged if ``fits`` accepts all of them. ``parse``: converts
    the text of keys and headers. ``is_key``: whether key columns may have the type.
    """

    name: str
    convert: Callable[[Any], Any]
    plain: type | None = None
    fits: Callable[[Iterable[Any]], bool] = lambda values: True
    parse: Callable[[str], Any] = str
    is_key: bool = True

    def converted(
        self, values: Sequence[Any], *, required: bool = False, default: Any = None
    ) -> tuple[Sequence[Any], dict[int, str]]:
        """Return the values to store, and the reason for each value that cannot be stored, by position. ``default``: a
        converted value, which replaces ``None``; not used with ``required``."""
        kinds = set(map(type, values))
        nulls = NoneType in kinds
        kinds.discard(NoneType)
        if kinds <= {self.plain} and not (nulls and required):
            present = (value for value in values if value is not None) if nulls else values
            if self.fits(present):
                defaults = nulls and default is not None
                return [default if value is None else value for value in values] if defaults else values, {}
        stored: list[Any] = []
        reasons: dict[int, str] = {}
        for position, value in enumerate(values):
            try:
                stored.append(self._one(value, required=required, default=default))
            except ValueError as error:
                reasons[position] = str(error)
                stored.append(None)
        return stored, reasons

    def _one(self, value: Any, *, required: bool, default: Any) -> Any:
        if value is None:
            if required:
                raise ValueError("is missing or null")
            return default
        if isinstance(value, bytes) and self.plain is not bytes:
            # raise another error, because the text of this error may quote the value
            with contextlib.suppress(ValueError, RecursionError, msgspec.MsgspecError):
                return self.convert(self.parse(value.decode()))
            raise ValueError("has bytes that cannot be read as this type")
        return self.convert(value)


_KINDS = {dict: "an object", list: "an array", str: "text", bool: "a boolean", float: "a fraction", int: "an integer"}


def kind_of(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _checked(value: Any, wanted: str, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"is {kind_of(value)}, not {wanted}")
    return value


def _no_nul(values: Iterable[str]) -> bool:
    return "\0" not in "".join(values)


def _text(value: Any) -> str:
    # A member of an enum may be a text, but not an exact `str`, which COPY needs.
    text = str(value) if isinstance(value, uuid.UUID) else str.__str__(_checked(value, "text", str))
    if "\0" in text:
        raise ValueError("contains the character NUL, which databases do not store")
    return text


def _in_range(values: Iterable[int]) -> bool:
    found = (*values, 0)
    return min(found) >= _SMALLEST and max(found) <= _LARGEST


def _integer(value: Any) -> int:
    if not _in_range([_checked(value, "an integer", int)]):
        raise ValueError("is beyond 64 bits")
    return int(value)


def _double(value: Any) -> float:
    number = _checked(value, "a number", int, float)
    if not abs(number) <= sys.float_info.max:
        raise ValueError("is not finite")
    return float(number)


def _finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))


def _numeric(value: Any) -> str:
    _checked(value, "a number", int, float, str, decimal.Decimal)
    try:
        number = decimal.Decimal(repr(value) if isinstance(value, float) else value)
    except decimal.InvalidOperation:
        number = decimal.Decimal("nan")
    if not number.is_finite():
        raise ValueError("is not a finite number")
    return format(number, "f") if abs(number.adjusted()) < 1000 else str(number)


def _timestamp(value: Any) -> str:
    """Return a time in UTC in SQLAlchemy's format for SQLite, which PostgreSQL also reads. Integers: milliseconds."""
    moment = None
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            moment = _EPOCH + datetime.timedelta(milliseconds=value)
        elif isinstance(value, str):
            moment = datetime.datetime.fromisoformat(value)
        elif isinstance(value, datetime.datetime):
            moment = value
        elif hasattr(value, "ToDatetime"):  # a Protobuf timestamp
            moment = value.ToDatetime()
        if moment is not None and moment.tzinfo is not None:
            moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        moment = None
    if moment is None:
        raise ValueError("is neither milliseconds since 1970 nor a time such as 2026-01-31T06:00:00Z")
    return moment.isoformat(" ", "microseconds")


def _json(value: Any) -> str:
    try:
        text = orjson.dumps(value, default=_plain)
        if b"null" in text:  # orjson writes NaN and Infinity as null, without an error
            json.dumps(value, allow_nan=False, default=_plain_or_text)
        return text.decode()
    except ValueError:
        reason = "has NaN or an infinity"
    except TypeError:
        # json also writes integers beyond 64 bits, and keys that are numbers, as in maps of Protobuf.
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            return json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        reason = "has a value that JSON cannot represent"
    raise ValueError(reason)


def _plain(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return str(value)
    if hasattr(value, "DESCRIPTOR"):  # Protobuf messages have their own JSON format
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value, preserving_proto_field_name=True)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return list(value)
    raise TypeError


def _plain_or_text(value: Any) -> Any:
    return _plain(value) if isinstance(value, Mapping | Sequence) else str(value)


def _moment(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


TYPES: Mapping[str, ColumnType] = {
    each.name: each
    for each in (
        ColumnType("text", _text, str, _no_nul),
        ColumnType("integer", _integer, int, _in_range, orjson.loads),
        ColumnType("double", _double, float, _finite, orjson.loads, is_key=False),
        ColumnType("boolean", lambda value: _checked(value, "a boolean", bool), bool, parse=orjson.loads),
        ColumnType("numeric", _numeric, is_key=False),
        ColumnType("timestamp", _timestamp, parse=_moment),
        ColumnType("json", _json, parse=msgspec.json.decode, is_key=False),
        ColumnType("bytes", lambda value: _checked(value, "bytes", bytes), bytes),
    )
}
