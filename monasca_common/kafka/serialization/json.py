# SPDX-License-Identifier: Apache-2.0
"""JSON (RFC 8259 with the restrictions of RFC 7493): fast for usual messages, strict with hostile ones.

orjson refuses NaN, Infinity, lone surrogates and bytes that are not UTF-8. It accepts duplicate keys (the last one
wins) and reads integers beyond 64 bits as floats. A fast check of the text finds candidates for both; a slower parser
checks only these.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, ClassVar

import orjson

from monasca_common.kafka.errors import SerializationError
from monasca_common.kafka.serialization.base import Serializer

_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64

_LONG_NUMBER = b"0" * 19  # no integer beyond 64 bits has fewer digits
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

# Only plain values are allowed, because values that orjson converts are read back as other types.
_PLAIN_VALUES = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class JsonSerializer(Serializer):
    """The serializer of plain JSON values."""

    content_type: ClassVar[str] = "application/json"

    def dumps(self, value: Any) -> bytes:
        text, reason = _written(value)
        if text is None:
            raise SerializationError(f"cannot be written as JSON: {reason}")
        # orjson writes NaN and Infinity as null, without an error.
        if b"null" in text and not all_finite(value):
            raise SerializationError("cannot be written as JSON, which has neither NaN nor Infinity: use None")
        if len(text) > MAX_BYTES:
            raise _too_large(text)
        if text.count(b"{") + text.count(b"[") > MAX_DEPTH:
            _check_depth(value)
        return text

    def loads(self, value: bytes) -> Any:
        if len(value) > MAX_BYTES:
            raise _too_large(value)
        parsed, reason = _parsed(value)
        if reason:
            raise SerializationError(f"not JSON: {reason}")
        if value.count(b"{") + value.count(b"[") > MAX_DEPTH:
            _check_depth(parsed)
        if _may_repeat_a_key(value, parsed) or _LONG_NUMBER in value.translate(_DIGITS_TO_ZERO):
            json.loads(value, object_pairs_hook=_unique_keys, parse_int=_bounded_integer)
        return parsed

    def loads_all(self, values: Sequence[bytes]) -> list[Any]:
        """Return the values, like `loads` one by one, at half the cost. Raises `SerializationError` if a value must be
        read separately, because it is not JSON or needs further checks."""
        try:
            parsed = list(map(orjson.loads, values))
        except orjson.JSONDecodeError:
            parsed = []
        text = b"\n".join(values)
        brackets = max(map(bytes.count, values, repeat(b"{")), default=0)
        if (
            len(parsed) != len(values)
            or text.count(b":") != orjson.dumps(parsed).count(b":")
            or brackets + max(map(bytes.count, values, repeat(b"[")), default=0) > MAX_DEPTH
            or max(map(len, values), default=0) > MAX_BYTES
            or (b"\\" in text and b"\\u003" in text)
            or _LONG_NUMBER in text.translate(_DIGITS_TO_ZERO)
        ):
            raise SerializationError("a value must be read separately")
        return parsed


def _too_large(text: bytes) -> SerializationError:
    return SerializationError(f"a JSON value of {len(text)} bytes is over the limit of {MAX_BYTES} bytes")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
    if any(isinstance(child, dict | list | tuple) for child in level):
        raise SerializationError(f"JSON with arrays and objects nested more than {MAX_DEPTH} deep")


# orjson's errors contain the whole document, so keep only the reason: no traceback may show the document.


def _parsed(text: bytes) -> tuple[Any, str]:
    try:
        return orjson.loads(text), ""
    except orjson.JSONDecodeError as error:
        return None, str(error)


def _written(value: Any) -> tuple[bytes | None, str]:
    try:
        return orjson.dumps(value, option=_PLAIN_VALUES), ""
    except TypeError as error:
        return None, str(error)


def _may_repeat_a_key(text: bytes, parsed: Any) -> bool:
    """Return whether keys may repeat: each key adds a colon to the text, but repeated keys add none to the output of
    orjson.

    Both have the same colons within strings, unless the text contains an escaped colon.
    """
    if text.count(b":") != orjson.dumps(parsed).count(b":"):
        return True
    return b"\\" in text and b"\\u003" in text


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise SerializationError("JSON with the same key twice in one object")
    return unique


def _bounded_integer(digits: str) -> int:
    # The length is checked first, because Python refuses to convert thousands of digits.
    if len(digits) > len(str(_SMALLEST)) or not _SMALLEST <= int(digits) <= _LARGEST:
        raise SerializationError("JSON with an integer beyond 64 bits: write it as a string")
    return int(digits)


def all_finite(value: Any) -> bool:
    """Return whether a plain JSON value has neither NaN nor Infinity."""
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(all_finite, _children(value)))


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
