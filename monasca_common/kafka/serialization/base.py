# SPDX-License-Identifier: Apache-2.0
"""The interface of serializers, which convert values to the bytes of messages and back."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal

from monasca_common.kafka.errors import SerializationError
from monasca_common.kafka.message import Headers, Record, S

CONTENT_TYPE_HEADER = "content-type"


@dataclass(frozen=True, slots=True)
class SerializationContext:
    """The place of a value: its topic, whether it is a key or a value, and the headers of its message."""

    topic: str
    field: Literal["key", "value"] = "value"
    headers: Headers = ()

    @property
    def option_name(self) -> str:
        """The name in options for topics: TOPIC, or TOPIC:key for keys."""
        return self.topic if self.field == "value" else f"{self.topic}:{self.field}"


class Serializer(ABC, Generic[S]):
    """A plugin of ``monasca_common.serializers``, shared by threads.

    ``Serializer[Reading]`` writes and reads `Reading`, and a `Processor` with it gives its handler
    ``Message[Reading]``. Without a parameter, the type of its values is unknown.

    ``__init__`` receives ``conf`` and ``type`` of `load_serializer` if it has parameters with these names. ``dumps``
    and ``loads`` receive a `SerializationContext` if they have a second parameter ``context``, which must be optional.
    Both may raise `RetryLater` while a service that they need is unavailable.
    """

    content_type: ClassVar[str]  # the value of the header that names the format to readers

    @property
    def headers(self) -> Headers:
        """The headers of a record with a value from this serializer."""
        return ((CONTENT_TYPE_HEADER, self.content_type.encode()),)

    @abstractmethod
    def dumps(self, value: S) -> bytes:
        """Return the bytes of ``value``. Raises `SerializationError` if it cannot be written."""

    @abstractmethod
    def loads(self, value: bytes) -> S:
        """Return the decoded value. Raises `SerializationError`, whose text must not quote the bytes."""

    def record(self, topic: str, value: S, *, key: bytes | None = None, headers: Headers = ()) -> Record:
        """Return a record with ``value`` and `headers`, to publish to ``topic``. Raises the errors of `dumps`."""
        headers = (*self.headers, *headers)
        write: Callable[..., bytes] = self.dumps
        context = (SerializationContext(topic, "value", headers),) if takes_context(type(self).dumps) else ()
        return Record(write(value, *context), key=key, headers=headers)


@functools.cache
def takes_context(function: Callable[..., Any]) -> bool:
    return "context" in inspect.signature(function).parameters


class RawSerializer(Serializer[bytes]):
    """Serializer that passes bytes through unchanged."""

    content_type: ClassVar[str] = "application/octet-stream"

    def dumps(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise SerializationError(f"raw writes bytes, not {type(value).__name__}: encode it, or use json")
        return bytes(value)

    def loads(self, value: bytes) -> bytes:
        return value
