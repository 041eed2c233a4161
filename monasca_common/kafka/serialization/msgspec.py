# SPDX-License-Identifier: Apache-2.0
"""Dataclasses and msgspec structs as JSON, with the checks of `json` and msgspec's type checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.kafka.serialization.base import S, Serializer
from monasca_common.kafka.serialization.json import PLAIN

# The other errors of msgspec may quote the value.
_TEXTS_ABOUT_TYPES = ("Encoding objects", "Expected `", "Object missing")
_PATH = re.compile(r" - at `(\$[^`]*)`$")


class MsgspecSerializer(Serializer[S]):
    """A serializer of values of ``type``: a dataclass, a struct, or a generic type or union of these."""

    content_type: ClassVar[str] = "application/json"

    def __init__(self, *, type: type[S]) -> None:  # noqa: A002
        try:
            msgspec.json.Decoder(type)
        except TypeError as error:
            raise ConfigurationError(f"serializer=msgspec: {error}: use a type that msgspec supports") from error
        self._type = type

    def dumps(self, value: S) -> bytes:
        plain = _convert(msgspec.to_builtins, value, str_keys=True)
        self._typed(plain)  # to_builtins does not check the types of fields
        return PLAIN.dumps(plain)

    def loads(self, value: bytes) -> S:
        return self._typed(PLAIN.loads(value))

    def _typed(self, plain: Any) -> S:
        return _convert(msgspec.convert, plain, type=self._type, str_keys=True)  # type: ignore[no-any-return]


def _convert(function: Callable[..., Any], value: Any, **choices: Any) -> Any:
    try:
        return function(value, **choices)
    except (TypeError, ValueError, RecursionError) as error:
        text = str(error)
        path = _PATH.search(text)
        reason = text if text.startswith(_TEXTS_ABOUT_TYPES) else f"invalid{f' at {path[1]}' if path else ''}"
    # Raised outside the except clause, so that no traceback shows the error of msgspec.
    raise SerializationError(f"not a value of the type of this serializer: {reason}")
