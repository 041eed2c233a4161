# SPDX-License-Identifier: Apache-2.0
"""The serializer for bytes, which it does not change."""

from __future__ import annotations

from typing import ClassVar

from monasca_common.kafka.errors import SerializationError
from monasca_common.kafka.serialization.base import Serializer


class RawSerializer(Serializer[bytes]):
    content_type: ClassVar[str] = "application/octet-stream"

    def dumps(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise SerializationError(
                f"the raw serializer writes bytes, and was given {type(value).__name__}: encode it, or use json"
            )
        return bytes(value)

    def loads(self, value: bytes) -> bytes:
        return value
