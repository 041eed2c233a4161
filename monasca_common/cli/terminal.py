# SPDX-License-Identifier: Apache-2.0
"""What commands write may be read on a terminal, which obeys some characters; names and errors come from anybody."""

from __future__ import annotations

import re
from typing import Any, TextIO

# Control characters but tab and line feed; what turns the direction of text; halves of characters, which no file takes.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class PlainStream:
    """Writes to another stream, and shows by its number what a terminal would obey."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_OBEYED.sub(_shown, text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def obeyed(stream: TextIO) -> TextIO:
    """The stream itself: for a bar or a colour of ours, with no text from elsewhere."""
    return stream._stream if isinstance(stream, PlainStream) else stream


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
