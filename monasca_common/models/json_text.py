# SPDX-License-Identifier: Apache-2.0
"""JSON of strangers, read and written by msgspec: bounded in depth, and free of what databases cannot keep.

msgspec refuses NaN, Infinity, numbers beyond a float, lone surrogates and bytes that are not UTF-8. Of a key that
occurs twice the last one counts, as in every parser that reads these topics; what is written here has each once.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from monasca_common.models.errors import NotJson

MOST_DEPTH = 64  # of arrays and objects inside each other
A_NUL = "has a NUL character: databases cannot store it, remove it"
HALF_A_PAIR = "has half of a surrogate pair, which is no character"
_TOO_DEEP = f"has more than {MOST_DEPTH} arrays and objects inside each other"

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors that msgspec raises for bytes of another type than it expects."""

_decode = msgspec.json.Decoder().decode
write = msgspec.json.Encoder().encode
#: Equal objects make equal text.
write_sorted = msgspec.json.Encoder(order="sorted").encode


def read(text: bytes | msgspec.Raw) -> Any:
    """Raises `NotJson`."""
    try:
        return _decode(text)
    except UNREADABLE as error:
        raise NotJson(reason(error)) from None


def read_leniently(text: bytes) -> Any:
    """What Python's own json reads: NaN, Infinity and lone surrogates as well, which clients in Python do write.

    For finding out which part of a text is to blame; what comes back is not fit to be stored. Raises `ValueError`.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def write_leniently(value: Any) -> bytes:
    """What `read_leniently` read, as text again."""
    try:
        return json.dumps(value).encode()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def reason(error: Exception) -> str:
    """What msgspec said, in a sentence that quotes nothing."""
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if "out of range" in str(error):
        return "has a number beyond a 64-bit float, or of too many digits"
    if "surrogate" in str(error):
        return HALF_A_PAIR
    return f"is not JSON: {error}"


def checked(value: Any) -> tuple[bytes, str | None]:
    """The value as JSON, and why no database should be given it; None if nothing is wrong."""
    try:
        written = write_sorted(value)
    except RecursionError:
        return b"null", _TOO_DEEP
    except UnicodeEncodeError:
        return b"null", HALF_A_PAIR
    return written, _fault(value, written)


def _fault(value: Any, written: bytes) -> str | None:
    if written.count(b"{") + written.count(b"[") > MOST_DEPTH and _is_deep(value):
        return _TOO_DEEP
    # The escape may also be the text of an escaped backslash and "u0000".
    if b"\\u0000" in written and _has_nul(value):
        return A_NUL
    return None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [child for parent in level for child in _children(parent)]
    return any(isinstance(value, dict | list) for value in level)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    return any(map(_has_nul, _children(value))) or (isinstance(value, dict) and any("\0" in key for key in value))
