# SPDX-License-Identifier: Apache-2.0
"""The frame of values with a schema, as Confluent's serializers write it: byte 0, the schema id in 4 bytes, and the
value. Values with the GUID of their schema in a header are also read."""

from __future__ import annotations

import functools
import uuid
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic

from oslo_config import cfg

from monasca_common.kafka.config.schema_registry import GROUP, registry_settings
from monasca_common.kafka.errors import ConfigurationError, MisuseError, SchemaRefused, SerializationError
from monasca_common.kafka.serialization.base import SerializationContext, Serializer
from monasca_common.kafka.serialization.json import PLAIN
from monasca_common.kafka.serialization.registry import Names, SchemaKey, SchemaRegistry, T

MAGIC = b"\0"
ID_END = 5
_GUID_MAGIC, _GUID_END = b"\1", 17


class FramedSerializer(Serializer[Any], Generic[T]):
    """A serializer of values whose schema is in a registry. ``T``: the type of a parsed schema."""

    schema_type: ClassVar[str]  # the registry's name of the format

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        settings = registry_settings(conf)
        self.registry: SchemaRegistry[T] = SchemaRegistry(settings, self.schema_type, self.parse)
        self.mixed_topics = frozenset(settings.mixed_topics)
        self._writer = functools.cache(self._open_writer)

    @abstractmethod
    def parse(self, text: str, names: Names) -> T:
        """Return the parsed schema. ``names``: the schemas to which it refers. Raises `SerializationError`."""

    @abstractmethod
    def record_name(self, schema: T) -> str:
        """Return the full name of the record, for the strategies that use it."""

    @abstractmethod
    def encode(self, value: Any, schema: T) -> bytes:
        """Return the bytes that follow the schema id. Raises `SerializationError`."""

    @abstractmethod
    def decode(self, value: bytes, key: SchemaKey, name: str) -> Any:
        """Return the value of `encode`. ``name``: its topic in options. Raises `SerializationError`, and
        `RegistryUnavailable`."""

    def dumps(self, value: Any, context: SerializationContext | None = None) -> bytes:
        """See `Serializer`. The context is required, because the schema depends on the topic."""
        if context is None:
            raise MisuseError("a value with a schema needs its topic: use record(), or pass a SerializationContext")
        self.registry.check()
        start, schema = self._writer(context.option_name)
        return start + self.encode(value, schema)

    def loads(self, value: bytes, context: SerializationContext | None = None) -> Any:
        """See `Serializer`. Without a context, values of mixed topics and schemas in headers are not read."""
        context = context or SerializationContext("")
        name, wanted = context.option_name, f"__{context.field}_schema_id"
        for header, guid in context.headers:
            if header == wanted and guid is not None and guid[:1] == _GUID_MAGIC and len(guid) >= _GUID_END:
                # After the GUID, Protobuf has the position of the message type, which otherwise starts the value.
                return self.decode(guid[_GUID_END:] + value, uuid.UUID(bytes=guid[1:_GUID_END]), name)
        if value[:1] == MAGIC:
            if len(value) < ID_END:
                raise SerializationError("the value ends within its schema id")
            return self.decode(value[ID_END:], int.from_bytes(value[1:ID_END]), name)
        if context.topic in self.mixed_topics:
            return PLAIN.loads(value)
        raise SerializationError(
            "the value has no schema id: it does not begin with byte 0, and its topic is not one of mixed_topics"
        )

    def read_schema(self, option: str, path: str) -> tuple[str, T]:
        """Return the text and the schema of a file that ``option`` names. Raises `ConfigurationError`."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            return text, self.parse(text, ())
        except (OSError, UnicodeDecodeError, SerializationError) as error:
            rule = f"names {path}, which cannot be used: {error}: correct it"
            raise ConfigurationError(f"{option} in group [{GROUP}] {rule}") from error

    def _open_writer(self, name: str) -> tuple[bytes, T]:
        """Return the bytes before each value of a topic, and their schema."""
        settings = self.registry.settings
        path = settings.schema_files.get(name)
        if path is None:
            text, subject, remedy = None, settings.subject(name), f"name a file for {name}"
        else:
            text, schema = self.read_schema("schema_files", path)
            subject = settings.subject(name, lambda: self.record_name(schema))
            remedy = f"correct or register {path}"
        try:
            schema_id, schema = self.registry.resolve(subject, text, register=settings.registers(name))
        except SchemaRefused as refused:
            reason = f"schema_files in group [{GROUP}]: {remedy}, because the registry refuses {subject}: {refused}"
            raise SchemaRefused(reason, refused.code) from None
        return MAGIC + schema_id.to_bytes(ID_END - 1), schema
