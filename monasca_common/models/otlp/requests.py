# SPDX-License-Identifier: Apache-2.0
"""Reads the bodies of OTLP requests: protobuf, or JSON with the ids of traces and spans in hexadecimal."""

from __future__ import annotations

import base64
from collections.abc import Sized
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from monasca_common.models import json_text
from monasca_common.models.errors import InvalidEnvelope, Unreadable, Violation

M = TypeVar("M", bound=Message)
Items = TypeVar("Items", bound=Sized)

MOST_JSON_OBJECTS = 250_000  # 5 MiB of points with many attributes have 230,000 items; each item takes 10 us
NS_PER_MS = 1_000_000
MOST_ITEMS = 250_000  # logs with many attributes have 50,000 objects per MiB
_HEX_IDS = frozenset({"traceId", "spanId", "trace_id", "span_id"})


class ItemCount:
    """Counts the items of a request while it is converted, because a small body can have millions of empty items:
    resources, scopes, metrics, data points, logs, and attributes except those of data points, which have a limit."""

    def __init__(self) -> None:
        self._left = MOST_ITEMS

    def of(self, items: Items) -> Items:
        """Return the items. Raises `InvalidEnvelope`."""
        self._left -= len(items)
        if self._left < 0:
            raise too_large(f"has more than {MOST_ITEMS} items and attributes")
        return items


def too_large(rule: str) -> InvalidEnvelope:
    return InvalidEnvelope([Violation("", f"{rule}: send it in parts", too_large=True)])


def from_protobuf(body: bytes, request: M) -> M:
    """Parse a body into ``request``. Raises `Unreadable`; protobuf refuses more than 100 nesting levels."""
    try:
        request.ParseFromString(body)
    except DecodeError:
        raise Unreadable(f"is not a protobuf {request.DESCRIPTOR.full_name}") from None
    return request


def from_json(body: bytes, request: M) -> M:
    """Parse a body into ``request``, and ignore unknown members. Raises `Unreadable`, or `InvalidEnvelope`."""
    if body.count(b"{") > MOST_JSON_OBJECTS:
        raise too_large(f"has more than {MOST_JSON_OBJECTS} JSON objects")
    document = json_text.read(body)
    try:
        if isinstance(document, dict):
            _ids_to_base64(document)
            json_format.ParseDict(document, request, ignore_unknown_fields=True)
            return request
    except (json_format.Error, ValueError, OverflowError, TypeError, AttributeError, RecursionError):
        pass  # in addition to its own error, the parser raises these errors for unexpected types and too many levels
    rule = f"is not a {request.DESCRIPTOR.full_name} in OTLP's JSON: see the definition of its members"
    raise InvalidEnvelope([Violation("", rule)])


def _ids_to_base64(document: Any) -> None:
    """Convert ids to base64 in place, because protobuf's JSON encodes bytes in base64. Attributes cannot have these
    members, because OTLP stores attribute keys as values."""
    found = [document]
    while found:
        value = found.pop()
        if isinstance(value, list):
            found += value
        elif isinstance(value, dict):
            for key in _HEX_IDS & value.keys():
                if isinstance(value[key], str):
                    value[key] = base64.b64encode(bytes.fromhex(value[key])).decode()
            found += value.values()
