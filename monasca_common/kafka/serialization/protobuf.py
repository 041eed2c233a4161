# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages of a generated class, with a schema id and the position of the message type in its file. The
generated class decodes every version of its message, so reading needs no registry."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf.message import DecodeError, EncodeError, Message
from oslo_config import cfg

from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.kafka.serialization.framed import ID_END, FramedSerializer
from monasca_common.kafka.serialization.registry import Names, SchemaKey


class ProtobufSerializer(FramedSerializer[str]):
    """A serializer of messages of ``type``, a class that protoc generated."""

    content_type: ClassVar[str] = "application/protobuf"
    schema_type: ClassVar[str] = "PROTOBUF"

    def __init__(self, conf: cfg.ConfigOpts, *, type: Any) -> None:  # noqa: A002
        self.message_type: Any = type
        if not (inspect.isclass(type) and issubclass(type, Message)):
            raise ConfigurationError("serializer=protobuf needs a class that protoc generated: pass it as type=")
        super().__init__(conf)
        self.mixed_topics = frozenset()  # plain JSON is not a message
        indexes = SchemaId(self.schema_type, 0, message_indexes=_indexes(self.message_type.DESCRIPTOR))
        self._indexes = indexes.id_to_bytes()[ID_END:]

    def parse(self, text: str, names: Names) -> str:
        return text

    def record_name(self, schema: str) -> str:
        return str(self.message_type.DESCRIPTOR.full_name)

    def encode(self, value: Any, schema: str) -> bytes:
        if not isinstance(value, self.message_type):
            raise SerializationError(f"protobuf writes {self.message_type.__name__} here, not {type(value).__name__}")
        try:
            return self._indexes + value.SerializeToString()  # type: ignore[no-any-return]
        except EncodeError:
            raise SerializationError(f"a required field of {self.message_type.__name__} is not set") from None

    def decode(self, value: bytes, key: SchemaKey, name: str) -> Any:
        if self._indexes == b"\0":
            value = value.removeprefix(b"\2")  # \2\0 is the list [0] in full, which most writers shorten to \0
        if not value.startswith(self._indexes):
            raise SerializationError(
                f"the value of schema {key} is of another message type of its file, not {self.message_type.__name__}"
            )
        try:
            return self.message_type.FromString(value.removeprefix(self._indexes))
        except DecodeError:
            raise SerializationError(f"not a {self.message_type.__name__} (schema {key})") from None


def _indexes(descriptor: Any) -> list[int]:
    """Return the position of a message type in its file: an index for each level of nesting."""
    parent = descriptor.containing_type
    siblings = descriptor.file.message_types_by_name.values() if parent is None else parent.nested_types
    index = [each.name for each in siblings].index(descriptor.name)
    return [index] if parent is None else [*_indexes(parent), index]
