# SPDX-License-Identifier: Apache-2.0
"""The interface of a serializer, with which a service reads and writes the bytes of messages as values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from monasca_common.kafka.message import Headers

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)
else:
    from typing import TypeVar  # knows of no defaults before Python 3.13

    S = TypeVar("S")

CONTENT_TYPE_HEADER = "content-type"


class Serializer(ABC, Generic[S]):
    """A plugin of ``monasca_common.serializers``: constructed without arguments, stateless, shared by threads.

    ``Serializer[Reading]`` writes and reads `Reading`, and a `Processor` with it gives its handler
    ``Message[Reading]``. Without a parameter, the type of its values is unknown.
    """

    content_type: ClassVar[str]  # the value of the header by which readers know how a value was written

    @property
    def headers(self) -> Headers:
        """The headers of a record with such a value."""
        return ((CONTENT_TYPE_HEADER, self.content_type.encode()),)

    @abstractmethod
    def dumps(self, value: S) -> bytes:
        """The bytes of ``value``. Raises `SerializationError` for what it cannot write."""

    @abstractmethod
    def loads(self, value: bytes) -> S:
        """The value of the bytes. Raises `SerializationError`, which never quotes them, because many people read
        logs."""
