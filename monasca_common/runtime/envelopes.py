# SPDX-License-Identifier: Apache-2.0
"""Envelopes in the values of messages: each is in JSON, or in Avro with a schema id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monasca_common.kafka import extras
from monasca_common.kafka.config.schema_registry import GROUP, SchemaRegistrySettings
from monasca_common.kafka.errors import ConfigurationError, SerializationError
from monasca_common.models.errors import InvalidEnvelope, Violation

if TYPE_CHECKING:
    from monasca_common.kafka.serialization.registry import SchemaRegistry
    from monasca_common.runtime.otlp import OtlpReader

Values = Sequence[bytes | None]

FORMATS = {"json": None, "avro": "with a schema id; needs [schema_registry] url"}
_MAGIC = b"\0"  # no JSON text begins with this byte
_ID_END = 5


class EnvelopeSchema:
    """A schema of envelopes, which is pickled as text. Raises `SerializationError` if the text is not such a schema.

    ``decode``: converts a record to its envelope in JSON; see `monasca_common.models.avro.decoder`.
    """

    def __init__(self, text: str, names: Sequence[tuple[str, str]]) -> None:
        from monasca_common.kafka.serialization.avro import AvroSerializer
        from monasca_common.models.avro import decoder

        schema = AvroSerializer.parse(text, names)
        self._source = text, tuple(names)
        try:
            self.decode = decoder(schema.parsed, schema.reads)
        except InvalidEnvelope as error:
            raise SerializationError(str(error)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvelopeSchema, self._source


class EnvelopeReader:
    """Converts values in Avro to JSON, which decoders of envelopes read. Thread-safe.

    ``schema``: the function that returns the schema with an id, or ``None`` if there is no registry. It raises
    `SerializationError` and `RegistryUnavailable`. ``otlp``: set for topics with OTLP requests, converted by executors.
    """

    def __init__(self, settings: SchemaRegistrySettings | None = None, otlp: OtlpReader | None = None) -> None:
        self.otlp = otlp
        self.schema: Callable[[int], EnvelopeSchema] | None = None if settings is None else _schemas(settings).get

    def as_json(self, values: Values) -> tuple[Values, Mapping[int, InvalidEnvelope]]:
        """Return the values in JSON, with ``None`` for unreadable values, and their errors by index.

        Raises `RegistryUnavailable`. Without a registry, values in Avro are unchanged, and decoders refuse them.
        """
        if self.schema is None:
            return values, {}
        texts, errors = list(values), {}
        for index, value in enumerate(values):
            if value is not None and value[:1] == _MAGIC:
                try:
                    texts[index] = self.text(value)
                except InvalidEnvelope as error:
                    texts[index], errors[index] = None, error
        return texts, errors

    def text(self, value: bytes | None) -> bytes | None:
        """Return one value in JSON. Raises `InvalidEnvelope`, and `RegistryUnavailable`."""
        if self.schema is None or value is None or value[:1] != _MAGIC:
            return value
        if len(value) < _ID_END:
            raise InvalidEnvelope([Violation("", "the value ends within its schema id")])
        schema_id = int.from_bytes(value[1:_ID_END])
        try:
            return self.schema(schema_id).decode(value[_ID_END:])
        except SerializationError as error:
            raise InvalidEnvelope([Violation("", str(error))]) from None
        except InvalidEnvelope as error:
            raise InvalidEnvelope([Violation("", f"with the schema {schema_id} {error}")]) from None


class EnvelopeWriter:
    """Converts envelopes in JSON to values of one topic in Avro. ``kind``: see `models.avro`."""

    def __init__(self, settings: SchemaRegistrySettings, kind: str, topic: str) -> None:
        self._registry = _schemas(settings)
        self._kind = kind
        self._topic = topic
        self._start = b""

    def values(self, envelopes: Sequence[bytes]) -> list[bytes]:
        """Return the values. Raises `RegistryUnavailable`, and `SchemaRefused` if the registry does not have the schema
        under the subject of the topic, by default <topic>-value."""
        from monasca_common.models import avro

        self._registry.check()
        if not self._start:
            settings, text = self._registry.settings, avro.schema_text(self._kind)
            with_default = replace(settings, subject_name_strategy=settings.subject_name_strategy or "topic")
            subject = with_default.subject(self._topic, lambda: str(avro.schema(self._kind)["name"]))
            schema_id, _ = self._registry.resolve(subject, text, register=settings.registers(self._topic))
            self._start = _MAGIC + schema_id.to_bytes(_ID_END - 1)
        return [self._start + avro.encode(self._kind, envelope) for envelope in envelopes]


def _schemas(settings: SchemaRegistrySettings) -> SchemaRegistry[EnvelopeSchema]:
    """Return the schemas in the registry. Raises `ConfigurationError` without the extra ``[avro]``."""
    try:
        import fastavro  # noqa: F401

        from monasca_common.kafka.serialization.registry import SchemaRegistry
    except ImportError as error:
        raise ConfigurationError(f"url in group [{GROUP}] is set, but {extras.remedy(error, 'avro')}") from None
    return SchemaRegistry(settings, "AVRO", EnvelopeSchema)
