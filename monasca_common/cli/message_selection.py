# SPDX-License-Identifier: Apache-2.0
"""Which messages an operator means: by key, header, field of a JSON value, and time."""

from __future__ import annotations

import argparse
import json
from typing import Any

from monasca_common.cli.command import moment_ms
from monasca_common.kafka import Message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", metavar="K", help="only messages with this key, as text (default: any)")
    parser.add_argument(
        "--header",
        action="append",
        metavar="NAME[=VALUE]",
        help="only messages with this header, or with this value of it; may be given several times",
    )
    parser.add_argument(
        "--field",
        action="append",
        type=_field,
        metavar="PATH=VALUE",
        help="only messages whose value is JSON with this field, such as metric.name=cpu.idle; numbers name the places "
        "of a list; may be given several times",
    )
    parser.add_argument(
        "--since",
        type=moment_ms,
        metavar="TIME",
        help="from the first message of this time on, such as 2026-01-31T06:00:00Z (UTC if it names no zone)",
    )
    parser.add_argument("--until", type=moment_ms, metavar="TIME", help="only messages from before this time")


def looks_inside(parsed_args: argparse.Namespace) -> bool:
    """Whether messages have to be read to know which are meant."""
    return parsed_args.key is not None or bool(parsed_args.header or parsed_args.field)


def is_meant(message: Message, parsed_args: argparse.Namespace) -> bool:
    time_ms = message.timestamp_ms or 0
    return (
        (parsed_args.since is None or time_ms >= parsed_args.since)
        and (parsed_args.until is None or time_ms < parsed_args.until)
        and (parsed_args.key is None or message.key == _bytes(parsed_args.key))
        and all(_has_header(message, header) for header in parsed_args.header or ())
        and (not parsed_args.field or _has_fields(message, parsed_args.field))
    )


def _has_header(message: Message, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    found = [content or b"" for each, content in message.headers if each == name]
    return _bytes(value) in found if equals else bool(found)


def _bytes(argument: str) -> bytes:
    """As the shell gave them: what is not UTF-8 came as halves of characters."""
    return argument.encode(errors="surrogateescape")


def _has_fields(message: Message, wanted: list[tuple[list[str], str]]) -> bool:
    try:
        content = json.loads(message.value or b"")
        return all(_text(_at(content, path)) == value for path, value in wanted)
    except (ValueError, LookupError, RecursionError):
        return False


def _at(content: Any, path: list[str]) -> Any:
    """Raises `LookupError` or `ValueError` where there is no such field."""
    for name in path:
        if isinstance(content, list):
            content = content[int(name)]
        elif isinstance(content, dict):
            content = content[name]
        else:
            raise LookupError(name)
    return content


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _field(text: str) -> tuple[list[str], str]:
    path, equals, value = text.partition("=")
    if not path or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not a field: write its path and value, as metric.name=cpu.idle")
    return path.split("."), value
