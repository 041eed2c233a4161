# SPDX-License-Identifier: Apache-2.0
"""Protects terminals from control characters in names and errors, which any client can send."""

from __future__ import annotations

import re
from typing import Any, TextIO

# Control characters except tab and line feed, directional marks, and surrogates, which cannot be encoded.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class PlainStream:
    """Writes to another stream, and replaces control characters with their code points."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_CONTROL.sub(_shown, text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unfiltered(stream: TextIO) -> TextIO:
    """Return the wrapped stream, for the program's own colors and progress bars."""
    return stream._stream if isinstance(stream, PlainStream) else stream


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
