# SPDX-License-Identifier: Apache-2.0
"""Reads and writes untrusted JSON with msgspec: limits its depth, and refuses values that databases cannot store.

msgspec refuses NaN, Infinity, numbers beyond a float, unpaired surrogates and bytes that are not UTF-8. The last of
repeated keys is used, as by all parsers that read these topics; written JSON has each key once.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from monasca_common.models.errors import Unreadable

MOST_DEPTH = 64  # maximum depth of nested arrays and objects
A_NUL = "has a NUL character, which databases cannot store: remove it"
HALF_A_PAIR = "has an unpaired surrogate, which is not a character: remove it"
_NUL = rb"\u0000"
_TOO_DEEP = f"has more than {MOST_DEPTH} levels of nested arrays and objects"

#: The errors that msgspec raises for invalid JSON, and for JSON of an unexpected type.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

_decode = msgspec.json.Decoder().decode
write = msgspec.json.Encoder().encode
#: Equal objects have equal texts.
write_sorted = msgspec.json.Encoder(order="sorted").encode


def read(text: bytes | msgspec.Raw) -> Any:
    """Decode JSON. Raises `Unreadable`."""
    try:
        return _decode(text)
    except UNREADABLE as error:
        raise Unreadable(reason(error)) from None


def read_leniently(text: bytes) -> Any:
    """Decode with Python's json, which accepts NaN, Infinity and unpaired surrogates; clients in Python may write
    these.

    Use it only to find the invalid part of a text; the result must not be stored. Raises `ValueError`.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def write_leniently(value: Any) -> bytes:
    """Encode a result of `read_leniently`."""
    try:
        return json.dumps(value).encode()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def reason(error: Exception) -> str:
    """Return the reason for a msgspec error, without quoting the text."""
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if "out of range" in str(error):
        return "has a number that exceeds a 64-bit float, or has too many digits"
    if "surrogate" in str(error):
        return HALF_A_PAIR
    return f"is not JSON: {error}"


def checked(value: Any) -> tuple[bytes, str | None]:
    """Return the value as JSON, and the reason why databases cannot store it, or ``None``."""
    try:
        written = write_sorted(value)
    except RecursionError:
        return b"null", _TOO_DEEP
    except UnicodeEncodeError:
        return b"null", HALF_A_PAIR
    if written.count(b"{") + written.count(b"[") > MOST_DEPTH and _is_deep(value):
        return written, _TOO_DEEP
    # An escaped backslash may precede the text "u0000".
    if _NUL in written and _NUL in written.replace(b"\\\\", b""):
        return written, A_NUL
    return written, None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        objects = (each.values() for each in level if isinstance(each, dict))
        arrays = (each for each in level if isinstance(each, list))
        level = [child for children in (*objects, *arrays) for child in children]
    return any(isinstance(each, dict | list) for each in level)
