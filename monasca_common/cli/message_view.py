# SPDX-License-Identifier: Apache-2.0
"""Messages as they are shown to an operator: where and when and how large; what is in them only on request, and cut."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from monasca_common.cli.command import positive
from monasca_common.kafka import Message
from monasca_common.models import times

_PAYLOAD_CHARACTERS = 200
_MASK = "***"
# What such a header holds is never shown: it lets somebody in.
_SECRET = re.compile(r"auth|cookie|credential|passw|secret|token|api.?key", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--payload",
        action="store_true",
        help="show key, headers and value too, which may be confidential; headers that name a secret stay masked",
    )
    parser.add_argument(
        "--payload-characters",
        type=positive,
        default=_PAYLOAD_CHARACTERS,
        metavar="N",
        help="cut keys, headers and values after so many characters (default: %(default)s)",
    )


def message_facts(message: Message, parsed_args: argparse.Namespace) -> dict[str, Any]:
    """What ``-f json`` prints of a message."""
    facts: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "time_ms": message.timestamp_ms,
        "message_id": message.message_id.decode(errors="backslashreplace"),
        "key_bytes": None if message.key is None else len(message.key),
        "value_bytes": None if message.value is None else len(message.value),
    }
    if parsed_args.payload:
        limit = parsed_args.payload_characters
        headers = [[name, _header(name, value, limit)] for name, value in message.headers]
        facts |= {"key": _text(message.key, limit), "headers": headers, "value": _text(message.value, limit)}
    return facts


def message_lines(message: Message, parsed_args: argparse.Namespace) -> Iterator[str]:
    time = "no time" if message.timestamp_ms is None else times.shown(message.timestamp_ms)
    key = "no key" if message.key is None else f"key of {len(message.key):,} B"
    value = "deletion" if message.value is None else f"value of {len(message.value):,} B"
    yield f"{message.topic}/{message.partition}/{message.offset}  {time}  {key}, {value}"
    if parsed_args.payload:
        limit = parsed_args.payload_characters
        yield f"  key     {_text(message.key, limit)}"
        for name, content in message.headers:
            yield f"  header  {_printable(name)}: {_header(name, content, limit)}"
        yield f"  value   {_text(message.value, limit)}"


def _header(name: str, value: bytes | None, limit: int) -> str | None:
    return _MASK if value and _SECRET.search(name) else _text(value, limit)


def _text(value: bytes | None, limit: int) -> str | None:
    """``None`` for what is not there."""
    if value is None:
        return None
    text = _printable(value[: 4 * limit].decode(errors="backslashreplace"))  # a character takes 4 bytes at most
    return text if len(text) <= limit and len(value) <= 4 * limit else f"{text[:limit]}… ({len(value):,} B)"


def _printable(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)
