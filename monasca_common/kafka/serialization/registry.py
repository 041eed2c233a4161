# SPDX-License-Identifier: Apache-2.0
"""The client of a schema registry, and a bounded cache of parsed schemas that outlives an outage.

Each question opens a client: questions are rare, and neither a connection nor a cache of the client is shared with a
forked child or kept by a registry that hangs.
"""

from __future__ import annotations

import queue
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import RegistryUnavailable, SchemaRefused, SerializationError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
SchemaKey = int | uuid.UUID  # the id in the frame of a value, or the GUID in a header
Names = Sequence[tuple[str, str]]  # (name, text) of the schemas that a schema refers to, each after those it refers to

_FIRST_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.5, 30.0
_ASK_AGAIN_SECONDS = 1.0  # for an unknown id
_SHORT_WAIT_SECONDS = 0.1  # for an unknown id shortly after another one was rejected
_MOST_REFERENCES = 100
_MOST_TEXT = 300  # characters of the registry's own error text
_VERIFIED = 3  # cached schemas that a registry which has lost its schemas no longer has
_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND = 40401, 40402, 40403
_REFUSALS = (409, 422, 40401, 40402, 40403)


class SchemaParser(Protocol[T_co]):
    """Parses the schemas of one format. ``schema_type``: its name in the registry."""

    @property
    def schema_type(self) -> str: ...

    def parse(self, text: str, names: Names) -> T_co:
        """Return the parsed schema. Raises `SerializationError`."""
        ...

    def canonical(self, text: str) -> Any:
        """Return a value that is equal for texts of the same schema."""
        ...


class SchemaRegistry(Generic[T]):
    """The schemas of one format, by id. Thread-safe.

    Schemas in the cache need no registry. A registry that restarts empty may give an id to another schema: a process
    keeps the schema that it has cached for an id, and never registers one under an id that it knows otherwise.
    """

    def __init__(self, settings: SchemaRegistrySettings, parser: SchemaParser[T]) -> None:
        self.settings = settings
        self.cached: dict[SchemaKey, T] = {}  # read without the lock
        self._parser = parser
        self.clock: Clock = SystemClock()
        self._texts: dict[SchemaKey, str] = {}
        self._unknown: dict[SchemaKey, float] = {}  # when each unknown id was first asked for
        self._rejected_at = float("-inf")  # when the last unknown id was rejected
        self._asking = threading.Lock()
        self._failures = 0
        self._ask_at = 0.0
        self._reason = ""

    def get(self, key: SchemaKey) -> T:
        """Return the parsed schema, from the cache or the registry. Raises `RegistryUnavailable`; `SerializationError`
        if the registry still does not have it after ``unknown_id_seconds``, or if it is of another format."""
        found = self.cached.get(key)
        if found is not None:
            return found
        try:
            schema, names = self.ask(lambda client: _resolved(client, _by_key(client, key)))
        except SchemaRefused as refused:
            if refused.code not in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND):
                raise
            self._wait_for(key)
            raise SerializationError(f"the schema registry has no schema {key}") from refused
        self._unknown.pop(key, None)
        return self._cache(key, schema, names)

    def latest(self, subject: str) -> tuple[int, T]:
        """Return the id and the parsed latest schema of a subject. Raises `SchemaRefused`, `RegistryUnavailable`."""

        def question(client: Any) -> tuple[int, Schema, Names]:
            found = client.get_latest_version(subject)
            return (found.schema_id, *_resolved(client, found.schema))

        schema_id, schema, names = self.ask(question)
        return schema_id, self.cached.get(schema_id) or self._cache(schema_id, schema, names)

    def schema_id(self, subject: str, text: str, *, register: bool) -> int:
        """Return the id of a schema under this subject. ``register``: register it if it is missing.

        Raises `SchemaRefused`, and `RegistryUnavailable` if the registry returns an id that another schema has here.
        """
        schema = Schema(text, self._parser.schema_type)

        def question(client: Any) -> tuple[int, str | None]:
            if register:
                schema_id = client.register_schema(subject, schema)
            else:
                schema_id = client.lookup_schema(subject, schema).schema_id
            client.clear_caches()
            return schema_id, client.get_schema(schema_id).schema_str

        schema_id: int
        schema_id, returned = self.ask(question)
        canonical = self._parser.canonical
        if any(canonical(each) != canonical(text) for each in (returned, self._texts.get(schema_id, text))):
            raise RegistryUnavailable(
                f"the schema registry has given id {schema_id} to two schemas, as after a restart without its data: "
                "restore it, or restart all readers and writers",
                _MAX_BACKOFF_SECONDS,
            )
        return schema_id

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """Return the answer to ``question``, within ``timeout_seconds``. After a failure, no question is asked until a
        back-off has passed. Raises `RegistryUnavailable`, and `SchemaRefused` if the registry refuses a request."""
        with self._asking:
            left = self._ask_at - self.clock.monotonic()
            if left > 0:
                raise RegistryUnavailable(self._reason, left)
            answer, error = self._answer(question)
            if error is None:
                self._failures = 0
                return answer
            if isinstance(error, SchemaRefused | SerializationError):
                self._failures = 0
                raise error
            delay = min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2**self._failures) * random.uniform(0.5, 1)
            self._failures = min(self._failures + 1, 10)
            self._ask_at = self.clock.monotonic() + delay
            self._reason = f"the schema registry {self.settings.url} is unavailable ({_reason(error)})"
            raise RegistryUnavailable(self._reason, delay)

    def _answer(self, question: Callable[[Any], Any]) -> tuple[Any, Exception | None]:
        """Return the answer or the error of a thread that can be left behind, because the client has a time-out only
        for each part of an answer."""
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        clients: list[SchemaRegistryClient] = []

        def run() -> None:
            try:
                with SchemaRegistryClient(_client_options(self.settings)) as client:
                    clients.append(client)
                    answers.put((question(client), None))
            except SchemaRegistryError as error:
                answers.put((None, _refusal(error) or error))
            except Exception as error:
                answers.put((None, error))

        threading.Thread(target=run, name="schema-registry", daemon=True).start()
        try:
            return answers.get(timeout=self.settings.timeout_seconds)
        except queue.Empty:
            for client in clients:
                client.close()  # ends the thread
            return None, TimeoutError()

    def _cache(self, key: SchemaKey, schema: Schema, names: Names) -> T:
        # Apicurio does not return the type, and the client then assumes AVRO.
        if schema.schema_type not in (self._parser.schema_type, "AVRO"):
            raise SerializationError(f"schema {key} is {schema.schema_type}, not {self._parser.schema_type}")
        text = schema.schema_str or ""
        try:
            parsed = self._parser.parse(text, names)
        except SerializationError as error:
            raise SerializationError(f"schema {key}: {error}") from None
        with self._asking:
            while len(self.cached) >= self.settings.cached_schemas:
                oldest = next(iter(self.cached))
                del self.cached[oldest], self._texts[oldest]
            self.cached[key], self._texts[key] = parsed, text
        return parsed

    def _wait_for(self, key: SchemaKey) -> None:
        """Raise `RegistryUnavailable` until an unknown id has been asked for during ``unknown_id_seconds``. Shortly
        after another id was rejected it is less, so that corrupt messages do not add up to a long wait."""
        now = self.clock.monotonic()
        limit = self.settings.unknown_id_seconds
        while len(self._unknown) >= self.settings.cached_schemas:
            self._unknown.pop(next(iter(self._unknown)), None)
        first = self._unknown.setdefault(key, now)
        if now - self._rejected_at < limit and first >= self._rejected_at:
            limit = min(limit, _SHORT_WAIT_SECONDS)
        if now - first < limit:
            raise RegistryUnavailable(f"the schema registry has no schema {key} yet", min(limit, _ASK_AGAIN_SECONDS))
        if not self.ask(self._has_schemas):
            raise RegistryUnavailable("the schema registry has lost its schemas: restore them", _MAX_BACKOFF_SECONDS)
        self._unknown.pop(key, None)
        self._rejected_at = now

    def _has_schemas(self, client: Any) -> bool:
        """Return whether the registry still has a schema of the cache, or any subject if the cache is empty."""
        known = list(self._texts.items())[-_VERIFIED:]
        for key, text in known:
            try:
                if _by_key(client, key).schema_str == text:
                    return True
            except SchemaRegistryError as error:
                if _refusal(error) is None:
                    raise
        return not known and bool(client.get_subjects())


def _by_key(client: Any, key: SchemaKey) -> Schema:
    found: Schema = client.get_schema(key) if isinstance(key, int) else client.get_schema_by_guid(str(key))
    return found


def _resolved(client: Any, schema: Schema) -> tuple[Schema, Names]:
    """Return the schema with those that it refers to by subject and version, which the same registry has."""
    names: list[tuple[str, str]] = []
    seen: set[tuple[Any, Any]] = set()

    def resolve(referring: Schema) -> None:
        for reference in referring.references or ():
            if (version := (reference.subject, reference.version)) not in seen:
                seen.add(version)
                if len(seen) > _MOST_REFERENCES:
                    raise SerializationError(f"a schema refers to more than {_MOST_REFERENCES} schemas")
                found = client.get_version(*version, deleted=True).schema
                resolve(found)
                names.append((reference.name or "", found.schema_str))

    resolve(schema)
    return schema, names


def _client_options(settings: SchemaRegistrySettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "url": settings.url,
        "timeout": settings.timeout_seconds,
        "max.retries": 0,  # the caller retries
        "ssl.ca.location": settings.tls_ca_file,
        "ssl.certificate.location": settings.tls_certificate_file,
        "ssl.key.location": settings.tls_key_file,
    }
    if settings.username:
        options["basic.auth.user.info"] = f"{settings.username}:{settings.password}"
    if settings.bearer_token:
        options |= {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": settings.bearer_token,
            "bearer.auth.logical.cluster": "",  # required by the client; only Confluent Cloud reads it
        }
    return options


def _refusal(error: SchemaRegistryError) -> SchemaRefused | None:
    """Return the refusal if the registry itself refuses a request, rather than a proxy, a login or a failure."""
    code = error.error_code
    if error.http_status_code not in (404, 409, 422) or not isinstance(code, int):
        return None
    if code not in _REFUSALS and not 42200 <= code < 42300:
        return None
    return SchemaRefused(f"{' '.join(str(error.error_message).split())[:_MOST_TEXT]} ({code})", code)


def _reason(error: Exception) -> str:
    """Return a reason without the error's text, which may quote a credential."""
    if isinstance(error, SchemaRegistryError):
        return f"status {error.http_status_code}"
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
