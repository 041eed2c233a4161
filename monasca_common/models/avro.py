# SPDX-License-Identifier: Apache-2.0
"""Envelopes in Avro: the shipped schemas, and the conversion between records and envelopes in JSON.

A schema file never changes; a new version is a new file, because readers may need the old version for years. Free-form
JSON (the payload of an event, other members of a log, sub-alarms) is stored as JSON text in a string field.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import fastavro
import msgspec

from monasca_common.models import json_text
from monasca_common.models.errors import Unreadable
from monasca_common.models.log import OWN_MEMBERS
from monasca_common.models.numbers import BY_TEXT, value_text

METRICS, LOGS, EVENTS, TRANSITIONS = "metrics", "logs", "events", "transitions"

Schema = Any
"""A schema that `fastavro.parse_schema` returns."""


def schema_text(kind: str) -> str:
    """Return the newest shipped schema, as JSON."""
    name = f"{kind}-{_KINDS[kind].newest}.avsc"
    return resources.files(__package__).joinpath("schemas", name).read_text("utf-8")


@cache
def schema(kind: str) -> Schema:
    """Return the newest shipped schema."""
    return fastavro.parse_schema(json.loads(schema_text(kind)))


def encode(kind: str, envelope: bytes) -> bytes:
    """Return the Avro record of an envelope in JSON that the API or a job has written."""
    record = io.BytesIO()
    fastavro.schemaless_writer(record, schema(kind), _KINDS[kind].to_record(json_text.read(envelope)))
    return record.getvalue()


def decoder(writer: Schema, read: Callable[..., Any] = fastavro.schemaless_reader) -> Callable[[bytes], bytes]:
    """Return a function that converts a record to its envelope in JSON, and raises `Unreadable` without any text of the
    record.

    ``writer``: the parsed schema of the records; ``read``: fastavro's function that reads them. Raises `Unreadable`
    unless ``writer`` is a version of an envelope's schema.
    """
    name = writer.get("name") if isinstance(writer, Mapping) else None
    kind = _KIND_OF_RECORD.get(name or "")
    if kind is None:
        known = ", ".join(_KIND_OF_RECORD)
        raise Unreadable(f"has the schema {name or 'of another type'}, which is not one of {known}")
    reader = None if writer == schema(kind) else schema(kind)
    to_envelope = _KINDS[kind].to_envelope

    def decode(record: bytes) -> bytes:
        source = io.BytesIO(record)
        try:
            found: Any = read(source, writer, None)
            if reader is not None:  # the record is read again, because fastavro skips fields past the record's end
                source.seek(0)
                found = read(source, writer, reader)
            excess_bytes = len(record) - source.tell()
            envelope = json_text.write(to_envelope(found))
        except Exception as error:  # fastavro raises errors of many types
            raise Unreadable(f"is not a record of {name}: {type(error).__name__}") from None
        if excess_bytes:
            raise Unreadable(f"has {excess_bytes} bytes after its record of {name}")
        return envelope

    return decode


def _text(value: Any) -> str:
    return json_text.write(value).decode()


def _raw(text: str) -> msgspec.Raw:
    json_text.read(text.encode())
    return msgspec.Raw(text.encode())


def _metric_record(envelope: dict[str, Any]) -> dict[str, Any]:
    value = envelope["metric"]["value"]
    envelope["metric"]["value"] = BY_TEXT.get(value, value)
    return envelope


def _metric_envelope(record: dict[str, Any]) -> dict[str, Any]:
    value = record["metric"]["value"]
    record["metric"]["value"] = value_text(value) or value
    return record


def _log_record(envelope: dict[str, Any]) -> dict[str, Any]:
    log = envelope["log"]
    own = {key: log[key] for key in OWN_MEMBERS if key in log}
    return {**envelope, "log": {**own, "fields": _text({key: value for key, value in log.items() if key not in own})}}


def _log_envelope(record: dict[str, Any]) -> dict[str, Any]:
    log = record["log"]
    fields = json_text.read(log.pop("fields").encode())
    return {**record, "log": {**fields, **log}}


def _event_record(envelope: dict[str, Any]) -> dict[str, Any]:
    return {**envelope, "event": {**envelope["event"], "payload": _text(envelope["event"]["payload"])}}


def _event_envelope(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "event": {**record["event"], "payload": _raw(record["event"]["payload"])}}


def _transition_record(envelope: dict[str, Any]) -> dict[str, Any]:
    alarm = envelope["alarm-transitioned"]
    texts = {key: _text(alarm[key]) for key in ("subAlarms", "metrics")}
    return {"alarm_transitioned": {**alarm, **texts}}


def _transition_envelope(record: dict[str, Any]) -> dict[str, Any]:
    alarm = record["alarm_transitioned"]
    return {"alarm-transitioned": {**alarm, **{key: _raw(alarm[key]) for key in ("subAlarms", "metrics")}}}


class _EnvelopeKind(NamedTuple):
    """A kind of envelope. ``record``: the name of its Avro record. ``newest``: its newest version."""

    record: str
    to_record: Callable[[dict[str, Any]], dict[str, Any]] = dict
    to_envelope: Callable[[dict[str, Any]], dict[str, Any]] = dict
    newest: int = 1


_KINDS: Mapping[str, _EnvelopeKind] = {
    METRICS: _EnvelopeKind("monasca.MetricEnvelope", _metric_record, _metric_envelope),
    LOGS: _EnvelopeKind("monasca.LogEnvelope", _log_record, _log_envelope),
    EVENTS: _EnvelopeKind("monasca.EventEnvelope", _event_record, _event_envelope),
    TRANSITIONS: _EnvelopeKind("monasca.TransitionEnvelope", _transition_record, _transition_envelope),
}
_KIND_OF_RECORD = {kind.record: name for name, kind in _KINDS.items()}
