# SPDX-License-Identifier: Apache-2.0
"""JSON (RFC 8259) in UTF-8, without NaN, Infinity and lone surrogates. Values are written with orjson, because it
refuses values that would be read back as other types, and read with msgspec, because it reads integers of any size
exactly. If a key is repeated, its last value is used."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import msgspec
import orjson

from monasca_common.kafka.errors import SerializationError
from monasca_common.kafka.serialization.base import Serializer

# Only plain values are allowed, because values that orjson converts are read back as other types.
_PLAIN_VALUES = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

_decode = msgspec.json.Decoder().decode
# orjson also writes UUIDs, and enum members as their values.
_check_finite = json.JSONEncoder(allow_nan=False, default=lambda value: getattr(value, "value", None)).encode


class JsonSerializer(Serializer):
    """A serializer of plain JSON values."""

    content_type: ClassVar[str] = "application/json"

    def dumps(self, value: Any) -> bytes:
        try:
            text = orjson.dumps(value, option=_PLAIN_VALUES)
            if b"null" in text:
                _check_finite(value)  # orjson writes NaN and Infinity as null, without an error
            return text
        except ValueError:
            reason = "JSON has neither NaN nor Infinity: use None"
        except TypeError as error:
            reason = str(error)
        raise SerializationError(f"cannot be written as JSON: {reason}")

    def loads(self, value: bytes) -> Any:
        try:
            return _decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reason = "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        # Raised outside the except clause, because a traceback of the error may show the value.
        raise SerializationError(f"not JSON: {reason}")


PLAIN = JsonSerializer()
