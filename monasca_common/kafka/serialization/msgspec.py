# SPDX-License-Identifier: Apache-2.0
"""Dataclasses and msgspec structs as JSON, with the checks of `json` and msgspec's type checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.kafka.serialization.json import JsonSerializer

# The other errors of msgspec may quote the value.
_TEXTS_ABOUT_TYPES = ("Encoding objects", "Expected `", "Object missing")
_PATH = re.compile(r" - at `(\$[^`]*)`$")


class MsgspecSerializer(JsonSerializer):
    """A serializer of values of ``type``: a dataclass, a struct, or a generic type or union of these."""

    def __init__(self, *, type: type[Any]) -> None:  # noqa: A002
        try:
            msgspec.json.Decoder(type)
        except TypeError as error:
            raise ConfigurationError(f"serializer=msgspec: {error}: use a type that msgspec supports") from error
        self._type = type

    def dumps(self, value: Any) -> bytes:
        plain = _convert(msgspec.to_builtins, value)
        _convert(msgspec.convert, plain, type=self._type)  # to_builtins does not check the types of fields
        return super().dumps(plain)

    def loads(self, value: bytes) -> Any:
        return _convert(msgspec.convert, super().loads(value), type=self._type)


def _convert(function: Callable[..., Any], value: Any, **choices: Any) -> Any:
    try:
        return function(value, str_keys=True, **choices)
    except (TypeError, ValueError, RecursionError) as error:
        text = str(error)
        path = _PATH.search(text)
        reason = text if text.startswith(_TEXTS_ABOUT_TYPES) else f"invalid{f' at {path[1]}' if path else ''}"
    # Raised outside the except clause, so that no traceback shows the error of msgspec.
    raise SerializationError(f"not a value of the type of this serializer: {reason}")
