# SPDX-License-Identifier: Apache-2.0
"""`MemoryRegistry`: a schema registry for one test, with Confluent's API over HTTP and faults on demand."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import fixtures


class MemoryRegistry(fixtures.Fixture):
    """A registry at ``url`` during a test. It checks only Avro schemas, with the package avro: they must be able to
    read values of the latest version (the compatibility level BACKWARD).

    ``fault``: a status that every request gets, ``"hang"`` (no response while it is set), ``"drip"`` (a response that
    never ends) or ``None``. ``login``: the required value of the header ``Authorization``, or ``None``.
    ``requests``: the method and path of each request.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: int | str | None = None
        self.login: str | None = None
        self.requests: list[str] = []
        self.url = ""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self.clear()

    def _setUp(self) -> None:
        self.addCleanup(self.stop)
        self.start()

    def start(self) -> None:
        """Accept connections; after a stop, on the same port as before."""
        port = urlsplit(self.url).port or 0
        self._ended.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections. The schemas are kept."""
        self._ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def clear(self) -> None:
        """Forget all schemas and restart the ids at 1, like a registry that restarts without its data."""
        with self._lock:
            self._schemas: list[dict[str, Any]] = []  # by id - 1
            self._subjects: dict[str, list[int]] = {}  # the schema ids of the versions

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the JSON value of the response to a request."""
        for verb, pattern, function in _ROUTES:
            if verb == method and (match := re.fullmatch(pattern, path)):
                with self._lock:
                    try:
                        return 200, function(
                            self, *map(unquote, filter(None, match.groups())), **({"body": body} if body else {})
                        )
                    except _Refused as refused:
                        status, code, text = refused.args
                        return status, {"error_code": code, "message": text}
        return 404, {"error_code": 404, "message": f"no such resource: {path}"}

    def _register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        schema = _schema(body)
        versions = self._subjects.get(subject, [])
        if schema not in [self._schemas[number - 1] for number in versions]:
            if not self._is_compatible(subject, body=body)["is_compatible"]:
                raise _Refused(409, 409, "Schema being registered is incompatible with an earlier schema")
            if schema not in self._schemas:
                self._schemas.append(schema)
            self._subjects.setdefault(subject, []).append(self._schemas.index(schema) + 1)
        return {"id": self._schemas.index(schema) + 1}

    def _lookup(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        schema = _schema(body)
        for version, number in enumerate(self._versions(subject), start=1):
            if self._schemas[number - 1] == schema:
                return self._shown(subject, version)
        raise _Refused(404, 40403, "Schema not found")

    def _version(self, subject: str, version: str) -> dict[str, Any]:
        versions = self._versions(subject)
        number = len(versions) if version == "latest" else int(version)
        if not 0 < number <= len(versions):
            raise _Refused(404, 40402, f"Version {version} not found.")
        return self._shown(subject, number)

    def _by_id(self, number: str) -> dict[str, Any]:
        if not 0 < int(number) <= len(self._schemas):
            raise _Refused(404, 40403, f"Schema {number} not found")
        return self._schemas[int(number) - 1]

    def _by_guid(self, guid: str) -> dict[str, Any]:
        for number, schema in enumerate(self._schemas, start=1):
            if _guid(schema) == guid:
                return {**schema, "id": number, "guid": guid}
        raise _Refused(404, 40403, f"Schema {guid} not found")

    def _is_compatible(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        schema, versions = _schema(body), self._subjects.get(subject)
        if schema["schemaType"] != "AVRO" or not versions:
            return {"is_compatible": True}
        return {"is_compatible": _can_read(schema, self._schemas[versions[-1] - 1])}

    def _versions(self, subject: str) -> list[int]:
        if subject not in self._subjects:
            raise _Refused(404, 40401, f"Subject '{subject}' not found.")
        return self._subjects[subject]

    def _shown(self, subject: str, version: int) -> dict[str, Any]:
        number = self._subjects[subject][version - 1]
        schema = self._schemas[number - 1]
        return {**schema, "subject": subject, "version": version, "id": number, "guid": _guid(schema)}


class _Refused(Exception):
    """Status, error code and text of a response."""


_ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("GET", "/subjects", lambda registry: sorted(registry._subjects)),
    ("GET", "/subjects/([^/]+)/versions", lambda registry, subject: [*range(1, len(registry._versions(subject)) + 1)]),
    ("GET", r"/subjects/([^/]+)/versions/(\d+|latest)", MemoryRegistry._version),
    ("POST", "/subjects/([^/]+)/versions", MemoryRegistry._register),
    ("POST", "/subjects/([^/]+)", MemoryRegistry._lookup),
    ("GET", r"/schemas/ids/(\d+)", MemoryRegistry._by_id),
    ("GET", "/schemas/guids/([^/]+)", MemoryRegistry._by_guid),
    ("POST", r"/compatibility/subjects/([^/]+)/versions(?:/(?:latest))?", MemoryRegistry._is_compatible),
)


def _handler(registry: MemoryRegistry) -> type[BaseHTTPRequestHandler]:
    class RegistryHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            registry.requests.append(f"{self.command} {path}")
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            fault = registry.fault
            if registry.login not in (None, self.headers.get("Authorization")):
                fault = 401
            while registry.fault == "hang" and not registry._ended.wait(0.01):
                pass
            status, answer = (fault, {}) if isinstance(fault, int) else registry.answer(self.command, path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content) if fault != "drip" else 1 << 30))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while fault == "drip" and not registry._ended.wait(0.01):
                    self.wfile.write(b" ")
                self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            """Log nothing."""

    return RegistryHandler


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"schemaType": body.get("schemaType", "AVRO"), "schema": body["schema"]}
    if schema["schemaType"] in ("AVRO", "JSON"):
        try:
            json.loads(schema["schema"])
        except ValueError:
            raise _Refused(422, 42201, "Invalid schema") from None
    return {**schema, "references": body.get("references") or []}


def _guid(schema: dict[str, Any]) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(schema)))


def _can_read(reader: dict[str, Any], writer: dict[str, Any]) -> bool:
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.schema import parse

    checker: Any = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    found = checker.get_compatibility(parse(reader["schema"]), parse(writer["schema"])).compatibility
    return bool(found is SchemaCompatibilityType.compatible)
