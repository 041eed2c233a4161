# SPDX-License-Identifier: Apache-2.0
"""A bounded cache of a registry's schemas, which remains usable during an outage."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryError

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import RegistryUnavailable, SchemaRefused, SerializationError
from monasca_common.kafka.serialization.registry_client import MAX_BACKOFF_SECONDS, NOT_FOUND, RegistryClient, refusal

T = TypeVar("T")
SchemaKey = int | uuid.UUID  # the id in the frame of a value, or the GUID in a header
Names = Sequence[tuple[str, str]]  # (name, text) of the schemas to which a schema refers, each after its own references

_ASK_AGAIN_SECONDS = 1.0  # the wait for an unknown id
_SHORT_WAIT_SECONDS = 0.1  # the wait for an unknown id shortly after another id was rejected
_MOST_REFERENCES = 100
_COMPARE_SECONDS = 60.0
_MOST_COMPARED = 10  # number of cached schemas, chosen at random
_REUSED = (
    "the schema registry has assigned id {} to two schemas, as after a restart without its data: restore it, or "
    "restart all readers and writers"
)


class SchemaRegistry(RegistryClient, Generic[T]):
    """The schemas of one format, by id. Thread-safe. ``parse``: see `FramedSerializer`.

    A registry that restarts empty may assign an id to a different schema, so cached schemas are compared with the
    registry every minute. While one differs, nothing is read or written.
    """

    def __init__(self, settings: SchemaRegistrySettings, schema_type: str, parse: Callable[[str, Names], T]) -> None:
        super().__init__(settings)
        self.cached: dict[SchemaKey, tuple[str, T]] = {}  # the texts and the parsed schemas; `ask` serializes changes
        self._schema_type = schema_type
        self._parse = parse
        self._compare_at = float("inf")
        self._reused: tuple[SchemaKey, ...] = ()  # a key that the registry has assigned to a different schema
        self._unknown: dict[SchemaKey, float] = {}  # the time at which each unknown id was first requested
        self._rejected_at = float("-inf")  # the time at which the last unknown id was rejected

    def check(self) -> None:
        """Raise `RegistryUnavailable` while a cached schema differs. Another thread compares the schemas."""
        if self.clock.monotonic() >= max(self._compare_at, self._ask_at):
            self._compare_at = self.clock.monotonic() + _COMPARE_SECONDS
            threading.Thread(target=self._answer, args=(self._compare,), name="schema-registry", daemon=True).start()
        if self._reused:
            raise RegistryUnavailable(_REUSED.format(*self._reused), MAX_BACKOFF_SECONDS)

    def get(self, key: SchemaKey) -> T:
        """Return the parsed schema, from the cache or the registry. Raises `RegistryUnavailable`, or
        `SerializationError` if its format differs, or the registry still lacks it after ``unknown_id_seconds``."""
        self.check()
        cached = self.cached.get(key)
        return self._fetch(key, lambda: self.cached.get(key)) if cached is None else cached[1]

    def resolve(self, subject: str, text: str | None = None, *, register: bool = False) -> tuple[int, T]:
        """Return the id of a schema under this subject, and the schema as the registry has it: the schema ``text``, or
        the latest. ``register``: register ``text`` if it is missing. Raises `SchemaRefused`, and the errors of `get`,
        also if the registry returns the id of another cached schema."""
        schema = Schema(text, self._schema_type)

        def request(client: Any) -> int:
            method = client.register_schema_full_response if register else client.lookup_schema
            found = client.get_latest_version(subject) if text is None else method(subject, schema)
            if type(found.schema_id) is int and 0 <= found.schema_id < 2**32:
                return found.schema_id
            raise ValueError("no schema id in the response")  # the response of a proxy

        schema_id: int = self.ask(request)
        return schema_id, self._fetch(schema_id)

    def _fetch(self, key: SchemaKey, find: Callable[[], Any] = lambda: None) -> T:
        def request(client: Any) -> tuple[Schema, Names]:
            schema = _schema(client, key)
            return schema, tuple(_references(client, schema, set()))

        try:
            entry: tuple[str, T] = self.ask(request, find, lambda found: self._cache(key, *found))
            return entry[1]
        except SchemaRefused as refused:
            if refused.code not in NOT_FOUND:
                reason = f"the schema registry refuses to return schema {key}: {refused}"
                raise RegistryUnavailable(reason, MAX_BACKOFF_SECONDS) from None
            reason = f"the schema registry has no schema {key}, or lacks a schema to which it refers: {refused}"
            self._wait_for(key, request, reason)
            raise SerializationError(reason) from refused

    def _cache(self, key: SchemaKey, schema: Schema, names: Names) -> tuple[str, T]:
        self._unknown.pop(key, None)
        # Apicurio does not return the type, and the client then assumes AVRO; null also means AVRO.
        if schema.schema_type not in (self._schema_type, "AVRO", None):
            raise SerializationError(f"schema {key} is {schema.schema_type}, not {self._schema_type}")
        text = schema.schema_str or ""
        try:
            parsed = self._parse(text, names)
        except SerializationError as error:
            raise SerializationError(f"schema {key}: {error}") from None
        if self.cached.get(key, (text,))[0] != text:
            raise RegistryUnavailable(_REUSED.format(key), MAX_BACKOFF_SECONDS)
        while len(self.cached) >= self.settings.cached_schemas:
            del self.cached[next(iter(self.cached))]
        self.cached[key] = text, parsed
        self._compare_at = min(self._compare_at, self.clock.monotonic() + _COMPARE_SECONDS)
        return self.cached[key]

    def _wait_for(self, key: SchemaKey, request: Callable[[Any], object], reason: str) -> None:
        """Raise `RegistryUnavailable` until an unknown id has been requested for ``unknown_id_seconds``. Shortly after
        another id was rejected, the wait is shorter, so that several corrupt messages do not cause a long wait. This
        method then sleeps, because decoding the batch again would repeat the wait for each of its corrupt messages."""
        now = self.clock.monotonic()
        limit = self.settings.unknown_id_seconds
        first = self._unknown.setdefault(key, now)
        may_appear = now - first < limit
        if now - limit < self._rejected_at <= first:
            threading.Event().wait(_SHORT_WAIT_SECONDS)
            may_appear = self.ask(lambda client: _unless_refused(request, client)) is not None
        if may_appear:
            raise RegistryUnavailable(reason, min(limit, _ASK_AGAIN_SECONDS))
        if not self.ask(self._compare):
            raise RegistryUnavailable("the schema registry has lost its schemas: restore them", MAX_BACKOFF_SECONDS)
        self.check()
        self._unknown.pop(key, None)
        self._rejected_at = self.clock.monotonic()

    def _compare(self, client: Any) -> bool:
        """Compare cached schemas with the registry, and record whether one differs. Return whether any schema is the
        same or, if the cache is empty, whether the registry has any subject."""
        cached = self.cached.copy()
        if not cached:
            return bool(_unless_refused(client.get_subjects))
        keys = {*self._reused, *random.sample(list(cached), min(len(cached), _MOST_COMPARED))} & cached.keys()
        found = {key: _unless_refused(_schema, client, key) for key in keys}
        same = {key: schema.schema_str == cached[key][0] for key, schema in found.items() if schema is not None}
        self._reused = tuple(key for key, is_same in same.items() if not is_same)[:1]
        return any(same.values())


def _schema(client: Any, key: SchemaKey | tuple[str | None, int | None]) -> Schema:
    """Request a schema by its key, or by a subject and a version, which the error of a refusal then names."""
    try:
        if isinstance(key, tuple):
            found: Schema = client.get_version(*key, deleted=True).schema
        else:
            found = client.get_schema(key) if isinstance(key, int) else client.get_schema_by_guid(str(key))
    except SchemaRegistryError as error:
        if isinstance(key, tuple):
            error.error_message = f"version {key[1]} of {key[0]}: {error.error_message}"
        elif error.http_status_code == 404 and isinstance(key, uuid.UUID):
            error.error_code = NOT_FOUND[-1]  # some registries have no GUIDs
        raise
    if not isinstance(found.schema_str, str) or not found.schema_str:
        raise ValueError("no schema in the response")  # the response of a proxy
    return found


def _unless_refused(request: Callable[..., T], *arguments: Any) -> T | None:
    """Return the response, or ``None`` if the registry refuses the request."""
    try:
        return request(*arguments)
    except SchemaRegistryError as error:
        if refusal(error) is None:
            raise
        return None


def _references(client: Any, schema: Schema, seen: set[tuple[Any, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the schemas to which a schema refers by subject and version in the same registry, except ``seen``."""
    for reference in schema.references or ():
        if (version := (reference.subject, reference.version)) not in seen:
            seen.add(version)
            if len(seen) > _MOST_REFERENCES:
                raise SerializationError(f"a schema refers to more than {_MOST_REFERENCES} schemas")
            found = _schema(client, version)
            yield from _references(client, found, seen)
            yield reference.name or "", found.schema_str or ""
