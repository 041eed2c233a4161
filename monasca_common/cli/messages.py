# SPDX-License-Identifier: Apache-2.0
"""Selects messages by key, header, field of a JSON value or time, and shows them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from monasca_common.cli.command import add_since_and_until, positive
from monasca_common.kafka import Message, SerializationContext, entry_point, load_serializer
from monasca_common.kafka.config.schema_registry import GROUP
from monasca_common.kafka.errors import ConfigurationError, RegistryUnavailable, SerializationError
from monasca_common.models import times

_PAYLOAD_CHARACTERS = 200
_MASK = "***"
# Headers whose values are never shown, because they can contain credentials.
_SECRET = re.compile(r"auth|cookie|credential|passw|secret|token|api.?key", re.IGNORECASE)


class SchemaDecoder:
    """Decodes values with a schema to JSON, if ``[schema_registry]`` has a ``url``. ``report``: prints a remark.
    ``message_type``: the name of the Protobuf class of all values. Raises `ConfigurationError`."""

    def __init__(self, conf: cfg.ConfigOpts, report: Callable[[str], object], message_type: str | None = None) -> None:
        self._report: Callable[[str], object] | None = report
        self._serializers: list[Any] = []
        self._unavailable: ConfigurationError | None = None  # reported only if a value cannot be decoded
        if message_type is not None:
            from monasca_common.sink.mapping import MESSAGE_TYPES

            generated = entry_point(MESSAGE_TYPES, message_type, option="--message-type")
            self._serializers = [load_serializer("protobuf", conf=conf, type=generated)]
        elif conf[GROUP].url:
            for name in ("avro", "json-schema"):
                try:
                    self._serializers.append(load_serializer(name, conf=conf))
                except ConfigurationError as error:
                    self._unavailable = error

    def decoded(self, message: Message) -> Message:
        """Return the message with a value in JSON if its schema is known, otherwise the message itself."""
        has_header = any(name == "__value_schema_id" for name, _ in message.headers)
        if not message.value or not (has_header or message.value[0] == 0):
            return message
        context = SerializationContext(message.topic, "value", message.headers)
        for serializer in self._serializers:
            try:
                text = json.dumps(serializer.loads(message.value, context), default=_plain)
            except RegistryUnavailable as error:
                self._remark(error)
            except SerializationError:
                continue
            else:
                return replace(message, value=text.encode())
        if self._unavailable is not None:
            self._remark(self._unavailable)
        return message

    def _remark(self, error: Exception) -> None:
        if self._report is not None:
            self._report(f"some values are not decoded: {error}")
            self._report = None


def add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", metavar="K", help="only messages with this key (default: all messages)")
    parser.add_argument(
        "--header",
        action="append",
        metavar="NAME[=VALUE]",
        help="only messages with this header, or with this header and value; can be repeated",
    )
    parser.add_argument(
        "--field",
        action="append",
        type=_field,
        metavar="PATH=VALUE",
        help="only messages whose value is JSON with this field, such as metric.name=cpu.idle; numbers in the path are "
        "list indexes; can be repeated",
    )
    add_since_and_until(parser, "messages")


def add_payload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--payload",
        action="store_true",
        help="also show key, headers and value, which may be confidential; headers with secrets are masked",
    )
    parser.add_argument(
        "--payload-characters",
        type=positive,
        default=_PAYLOAD_CHARACTERS,
        metavar="N",
        help="truncate keys, headers and values after N characters (default: %(default)s)",
    )
    parser.add_argument(
        "--message-type",
        metavar="NAME",
        help="decode Protobuf values with the generated class of this entry point of monasca_common.sink.message_types "
        "(default: show Protobuf values unchanged)",
    )


def is_selected(message: Message, parsed_args: argparse.Namespace) -> bool:
    return (
        is_in_time(message, parsed_args)
        and (parsed_args.key is None or message.key == _bytes(parsed_args.key))
        and all(_has_header(message, header) for header in parsed_args.header or ())
        and (not parsed_args.field or _has_fields(message, parsed_args.field))
    )


def is_in_time(message: Message, parsed_args: argparse.Namespace) -> bool:
    """Return whether the message is in the time range of ``--since`` and ``--until``."""
    time_ms = message.timestamp_ms or 0
    return (parsed_args.since is None or time_ms >= parsed_args.since) and (
        parsed_args.until is None or time_ms < parsed_args.until
    )


def message_facts(message: Message, decoded: Message, parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the JSON object of a message. ``decoded``: the message with the value to show."""
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
        facts |= {"key": _cut(message.key, limit), "headers": headers, "value": _cut(decoded.value, limit)}
    return facts


def message_lines(message: Message, decoded: Message, parsed_args: argparse.Namespace) -> Iterator[str]:
    time = "no time" if message.timestamp_ms is None else times.shown(message.timestamp_ms)
    key = "no key" if message.key is None else f"key of {len(message.key):,} B"
    value = "deletion" if message.value is None else f"value of {len(message.value):,} B"
    yield f"{message.topic}/{message.partition}/{message.offset}  {time}  {key}, {value}"
    if parsed_args.payload:
        limit = parsed_args.payload_characters
        yield f"  key     {_cut(message.key, limit)}"
        for name, content in message.headers:
            yield f"  header  {_printable(name)}: {_header(name, content, limit)}"
        yield f"  value   {_cut(decoded.value, limit)}"


def _has_header(message: Message, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    found = [content or b"" for header, content in message.headers if header == name]
    return _bytes(value) in found if equals else bool(found)


def _bytes(argument: str) -> bytes:
    """Return the bytes of an argument as the shell passed them, even if they are not UTF-8."""
    return argument.encode(errors="surrogateescape")


def _has_fields(message: Message, wanted: list[tuple[list[str], str]]) -> bool:
    try:
        content = json.loads(message.value or b"")
        return all(_text(_at(content, path)) == value for path, value in wanted)
    except (ValueError, LookupError, RecursionError):
        return False


def _at(content: Any, path: list[str]) -> Any:
    """Return the field at a path. Raises `LookupError` or `ValueError` if the field does not exist."""
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a field: use path=value, such as metric.name=cpu.idle")
    return path.split("."), value


def _header(name: str, value: bytes | None, limit: int) -> str | None:
    return _MASK if value and _SECRET.search(name) else _cut(value, limit)


def _cut(value: bytes | None, limit: int) -> str | None:
    if value is None:
        return None
    text = _printable(value[: 4 * limit].decode(errors="backslashreplace"))  # a character takes at most 4 bytes
    return text if len(text) <= limit and len(value) <= 4 * limit else f"{text[:limit]}… ({len(value):,} B)"


def _plain(value: Any) -> Any:
    """Convert a value for JSON: a Protobuf message to Protobuf's JSON mapping, any other value to text."""
    if not hasattr(value, "DESCRIPTOR"):
        return str(value)
    from google.protobuf.json_format import MessageToDict

    try:
        return MessageToDict(value, preserving_proto_field_name=True)
    except Exception as error:
        raise SerializationError(f"not representable in JSON: {type(error).__name__}") from None


def _printable(text: str) -> str:
    """Replace control characters, because a terminal would interpret them."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)
