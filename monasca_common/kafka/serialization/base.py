# SPDX-License-Identifier: Apache-2.0
"""What a serializer must offer. Values travel as bytes; a serializer is how a service reads and writes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from monasca_common.kafka.message import Headers

CONTENT_TYPE_HEADER = "content-type"


class Serializer(ABC):
    """A plugin of ``monasca_common.serializers``: made without arguments, shared by threads, without state."""

    content_type: ClassVar[str]  # of the header that tells readers how a value was written

    @property
    def headers(self) -> Headers:
        """What a record with such a value carries."""
        return ((CONTENT_TYPE_HEADER, self.content_type.encode()),)

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """The bytes of ``value``. Raises `SerializationError` for what it cannot write."""

    @abstractmethod
    def loads(self, value: bytes) -> Any:
        """What the bytes stand for. Raises `SerializationError`, which never quotes them: logs are read by many."""
