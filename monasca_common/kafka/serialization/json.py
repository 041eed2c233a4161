# SPDX-License-Identifier: Apache-2.0
"""JSON (RFC 8259, and RFC 7493 in what it forbids): fast for the usual message, strict with a hostile one.

orjson refuses NaN, Infinity, lone surrogates and bytes that are not UTF-8. It accepts duplicate keys (the last one
wins) and turns integers beyond 64 bits into floats. A fast check of the text finds candidates for both, and only these
go to a slower parser.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

import orjson

from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.kafka.serialization.base import Serializer

_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19  # the shortest integer beyond 64 bits has as many digits
_DEEPEST = 250  # what orjson can write
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

# Only plain values are allowed, because what orjson converts on its own is not read back as it was.
_PLAIN_VALUES = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class JsonSerializer(Serializer):
    """The JSON serializer. ``max_bytes``: of one value. ``max_depth``: of nested arrays and objects."""

    content_type: ClassVar[str] = "application/json"

    def __init__(self, *, max_bytes: int = 16 * 1024 * 1024, max_depth: int = 64) -> None:
        if max_depth > _DEEPEST:
            raise ConfigurationError(f"max_depth={max_depth} is over {_DEEPEST}, the deepest that can be written")
        self.max_bytes = max_bytes
        self.max_depth = max_depth

    def dumps(self, value: Any) -> bytes:
        text, reason = _written(value)
        if text is None:
            raise SerializationError(f"cannot be written as JSON: {reason}")
        # orjson writes NaN and Infinity as null, without an error.
        if b"null" in text and not _all_finite(value):
            raise SerializationError("cannot be written as JSON: NaN and Infinity are no numbers in it; use null")
        return text

    def loads(self, value: bytes) -> Any:
        if len(value) > self.max_bytes:
            raise SerializationError(f"a JSON value of {len(value)} bytes is over the limit of {self.max_bytes} bytes")
        parsed, reason = _parsed(value)
        if reason:
            raise SerializationError(f"not JSON: {reason}")
        if value.count(b"{") + value.count(b"[") > self.max_depth:
            self._check_depth(parsed)
        if _may_repeat_a_key(value, parsed) or _LONG_NUMBER in value.translate(_DIGITS_TO_ZERO):
            json.loads(value, object_pairs_hook=_unique_keys, parse_int=_bounded_integer)
        return parsed

    def _check_depth(self, parsed: Any) -> None:
        level = [parsed]
        for _ in range(self.max_depth):
            level = [child for parent in level for child in _children(parent)]
            if not level:
                return
        if any(isinstance(value, dict | list) for value in level):
            raise SerializationError(f"JSON with more than {self.max_depth} arrays and objects inside each other")


# orjson's errors contain the whole document: only the reason is kept, so that no traceback shows the document.


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
    """Whether keys may repeat. Each key adds a colon to the text and to what orjson writes; the latter lacks repeats.

    Colons within strings are the same in both, unless the text writes one as an escape.
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
    # The length is checked first, because Python refuses to convert a number of many thousand digits.
    if len(digits) > len(str(_SMALLEST)) or not _SMALLEST <= int(digits) <= _LARGEST:
        _refuse_integer()
    return int(digits)


def _refuse_integer() -> NoReturn:
    raise SerializationError("JSON with an integer beyond 64 bits: write it as a string")


def _all_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(_all_finite, _children(value)))


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
