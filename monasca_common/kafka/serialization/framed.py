# SPDX-License-Identifier: Apache-2.0
"""The frame of values with a schema, as Confluent's serializers write it: byte 0, the schema id in 4 bytes, the value.

Values with the GUID of their schema in a header are read too.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from oslo_config import cfg

from monasca_common.kafka.config.schema_registry import GROUP, registry_settings
from monasca_common.kafka.errors import ConfigurationError, MisuseError, SerializationError
from monasca_common.kafka.serialization.base import S, SerializationContext, Serializer
from monasca_common.kafka.serialization.json import JsonSerializer
from monasca_common.kafka.serialization.registry import Names, SchemaKey, SchemaRegistry

T = TypeVar("T")

MAGIC = b"\0"
ID_END = 5
_GUID_MAGIC, _GUID_END = b"\1", 17
_JSON = JsonSerializer()


class FramedSerializer(Serializer[S], Generic[T, S]):
    """A serializer of values whose schema is in a registry. ``T``: the parsed schema of its format.

    ``registry``: its cache and client.
    """

    schema_type: ClassVar[str]  # the registry's name of the format

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        settings = registry_settings(conf)
        self.registry: SchemaRegistry[T] = SchemaRegistry(settings, self.schema_type, self.parse)
        self.mixed_topics = frozenset(settings.mixed_topics)
        self._writers: dict[str, tuple[bytes, T]] = {}  # the start of a value and its schema, by topic

    @abstractmethod
    def parse(self, text: str, names: Names) -> T:
        """Return the parsed schema. ``names``: those that it refers to. Raises `SerializationError`."""

    @abstractmethod
    def record_name(self, schema: T) -> str:
        """Return the full name of the record, for the strategies with it."""

    @abstractmethod
    def encode(self, value: S, start: bytes, schema: T) -> bytes:
        """Return ``start`` and the bytes of the value. Raises `SerializationError`."""

    @abstractmethod
    def decode(self, value: bytes, start: int, key: SchemaKey, topic: str) -> S:
        """Return the value whose bytes begin at ``start``. Raises `SerializationError` and `RegistryUnavailable`."""

    def dumps(self, value: S, context: SerializationContext | None = None) -> bytes:
        """See `Serializer`. The context is required, because the schema depends on the topic."""
        if context is None:
            raise MisuseError("a value with a schema needs its topic: use record(), or pass a SerializationContext")
        topic = context.topic if context.field == "value" else f"{context.topic}:{context.field}"
        writer = self._writers.get(topic)
        if writer is None:
            writer = self._writers[topic] = self._open_writer(topic, context)
        return self.encode(value, *writer)

    def loads(self, value: bytes, context: SerializationContext | None = None) -> S:
        """See `Serializer`. Without a context, values of mixed topics and schemas in headers are not read."""
        topic = ""
        if context is not None:
            topic = context.topic
            name = f"__{context.field}_schema_id"
            for header, guid in context.headers:
                if header == name and guid is not None and guid[:1] == _GUID_MAGIC and len(guid) >= _GUID_END:
                    # After the GUID, Protobuf has the position of the message type, which otherwise starts the value.
                    return self.decode(guid[_GUID_END:] + value, 0, uuid.UUID(bytes=guid[1:_GUID_END]), topic)
        if value[:1] == MAGIC:
            if len(value) < ID_END:
                raise SerializationError("the value ends within its schema id")
            return self.decode(value, ID_END, int.from_bytes(value[1:ID_END]), topic)
        if topic in self.mixed_topics:
            return _JSON.loads(value)  # type: ignore[no-any-return]
        raise SerializationError(
            "the value has no schema id: it does not begin with byte 0, and its topic is not one of mixed_topics"
        )

    def subject(self, context: SerializationContext, schema: T) -> str:
        """Return the name under which a schema is registered. Raises `ConfigurationError` without a strategy."""
        strategy = self.registry.settings.subject_name_strategy
        if strategy is None:
            raise ConfigurationError(
                f"subject_name_strategy in group [{GROUP}] is not set, and there is no default: all writers of topic "
                f"{context.topic} must use the same"
            )
        if strategy == "topic":
            return f"{context.topic}-{context.field}"
        name = self.record_name(schema)
        return name if strategy == "record" else f"{context.topic}-{name}"

    def _open_writer(self, topic: str, context: SerializationContext) -> tuple[bytes, T]:
        settings = self.registry.settings
        if (path := settings.schema_files.get(topic)) is not None:
            text = Path(path).read_text()
            schema = self.parse(text, ())
            subject = self.subject(context, schema)
            schema_id = self.registry.schema_id(subject, text, register=settings.auto_register)
        elif settings.subject_name_strategy == "topic":
            schema_id, schema = self.registry.latest(f"{context.topic}-{context.field}")
        else:
            raise ConfigurationError(
                f"schema_files in group [{GROUP}] has no file for topic {topic}: add one, or set "
                "subject_name_strategy=topic to use the latest schema of the registry"
            )
        return MAGIC + schema_id.to_bytes(ID_END - 1), schema
