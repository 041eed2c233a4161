# SPDX-License-Identifier: Apache-2.0
"""OTLP attributes: values of any type as text or JSON, and the dimensions of a resource and a scope."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from monasca_common.models import json_text
from monasca_common.models.limits import LONGEST_TEXT
from monasca_common.models.numbers import value_text
from monasca_common.models.otlp.requests import ItemCount

SCOPE_NAME, SCOPE_VERSION = "otel.scope.name", "otel.scope.version"
#: Longer texts are truncated. They are refused anyway, but are checked for each item of a resource, scope or metric.
MOST_TEXT = 4 * LONGEST_TEXT


def plain(value: AnyValue) -> Any:
    """Return a value for JSON: bytes as base64, and NaN and infinities as text. The last of repeated keys is used."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(element) for element in value.array_value.values]
    if kind == "kvlist_value":
        return plain_members(value.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if kind == "double_value":
        return value_text(value.double_value) or value.double_value
    return None if kind is None else getattr(value, kind)


def plain_members(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {attribute.key: plain(attribute.value) for attribute in attributes}


def text(value: AnyValue) -> str:
    """Return a string unchanged, a missing value as an empty string, and any other value as its JSON."""
    if value.HasField("string_value"):
        return value.string_value
    converted = plain(value)
    if converted is None:
        return ""
    return converted if isinstance(converted, str) else json_text.write(converted).decode()


def dimensions(attributes: Iterable[KeyValue]) -> dict[str, str]:
    """Return attributes as dimensions, except those with an empty value, because Prometheus does not distinguish them
    from missing attributes."""
    return {attribute.key: value[:MOST_TEXT] for attribute in attributes if (value := text(attribute.value))}


def common_dimensions(of: Resource | InstrumentationScope, allowed: frozenset[str], items: ItemCount) -> dict[str, str]:
    """Return the dimensions of all items of a resource or a scope: its attributes, and the name and version of a scope,
    if ``allowed`` contains their keys."""
    found = dimensions(attribute for attribute in items.of(of.attributes) if attribute.key in allowed)
    if isinstance(of, InstrumentationScope):
        named = {SCOPE_NAME: of.name[:MOST_TEXT], SCOPE_VERSION: of.version[:MOST_TEXT]}
        found |= {key: value for key, value in named.items() if value and key in allowed}
    return found
