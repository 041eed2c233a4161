# SPDX-License-Identifier: Apache-2.0
"""JSON (RFC 8259, and RFC 7493 in what it forbids): fast for the usual message, strict with a hostile one.

orjson refuses NaN, Infinity, lone surrogates and bytes that are not UTF-8. It accepts duplicate keys (the last one
wins) and makes floats of integers beyond 64 bits: these are looked for in the text, and only where the look gives
reason to does a slower parser decide.
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

# A writer gives plain values: what orjson would convert on its own does not come back as it was.
_PLAIN_VALUES = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class JsonSerializer(Serializer):
    """``max_bytes``: of one value. ``max_depth``: of arrays and objects inside each other."""

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
        # orjson writes NaN and Infinity as null, without a word.
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


# orjson's errors carry the whole document: the reason is taken out, so that no traceback leads to it.


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
    """Each key brings one colon, in the text and in what orjson writes; a repeated key is gone from the latter.

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
    # The length first: converting a number of many thousand digits takes long, and Python refuses to.
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
