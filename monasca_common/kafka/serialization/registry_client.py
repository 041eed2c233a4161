# SPDX-License-Identifier: Apache-2.0
"""The client of a schema registry, with a deadline for each request, and a back-off while it is unavailable. Each
request opens a client: requests are rare, and a client's connection and cache are thus neither shared with a forked
child nor blocked by a registry that hangs."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from confluent_kafka.schema_registry import Schema as Schema
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import RegistryUnavailable, SchemaRefused, SerializationError

logging.getLogger("httpx2").setLevel(logging.WARNING)  # this logger logs each request

NOT_FOUND = (40401, 40402, 40403)  # the subject, the version or the schema
MAX_BACKOFF_SECONDS = 30.0
_FIRST_BACKOFF_SECONDS = 0.5
_MOST_TEXT = 300  # characters of the registry's own error text
_REFUSALS = (409, 422, *NOT_FOUND, *range(42200, 42300))
_NO_ANSWER = "no response in time"
_Call = Callable[[Any], Any]


class RegistryClient:
    """Sends requests to the registry of ``[schema_registry]``. Thread-safe."""

    def __init__(self, settings: SchemaRegistrySettings) -> None:
        self.settings = settings
        self.clock: Clock = SystemClock()
        self._asking = threading.Lock()
        self._backoff = 0.0  # seconds; 0 unless the last request failed
        self._ask_at = 0.0
        self._reason = ""

    def ask(self, question: _Call, find: Callable[[], Any] = lambda: None, keep: _Call = lambda answer: answer) -> Any:
        """Return the response to ``question``, within ``timeout_seconds`` after at most the same time for other
        threads. After a failure, no request is sent until a back-off has passed, and then only one, for which other
        threads do not wait. The back-off after a time-out is at least as long as the time-out, so a registry that hangs
        blocks one thread for half of the time. ``find``: returns a result that another thread has kept in the meantime,
        or ``None``; ``keep``: keeps a response, and returns its result. Raises `RegistryUnavailable`, and
        `SchemaRefused` if the registry refuses."""
        if not self._asking.acquire(timeout=0 if self._backoff else self.settings.timeout_seconds):
            reason = self._reason if self._backoff else f"the schema registry {self.settings.url} is slow"
            raise RegistryUnavailable(reason, _FIRST_BACKOFF_SECONDS)
        try:
            if (found := find()) is not None:
                return found
            left = self._ask_at - self.clock.monotonic()
            if left > 0:
                raise RegistryUnavailable(self._reason, left)
            answer, error = self._answer(question)
            if error is None or isinstance(error, SerializationError):
                self._backoff = 0.0
                if error is not None:
                    raise error
                return keep(answer)
            reason = _reason(error)
            least = min(MAX_BACKOFF_SECONDS, self.settings.timeout_seconds) if reason == _NO_ANSWER else 0.0
            self._backoff = min(MAX_BACKOFF_SECONDS, 2 * self._backoff or _FIRST_BACKOFF_SECONDS)
            delay = max(least, self._backoff * random.uniform(0.5, 1))
            self._ask_at = self.clock.monotonic() + delay
            self._reason = f"the schema registry {self.settings.url} is unavailable ({reason})"
            raise RegistryUnavailable(self._reason, delay)
        finally:
            self._asking.release()

    def _answer(self, question: _Call) -> tuple[Any, Exception | None]:
        """Send a request on a thread that can be abandoned, because the client's time-out applies to each part of a
        response. Return the response or the error."""
        response: Future[Any] = Future()

        def run() -> None:
            try:
                response.set_result(question(client))
            except Exception as error:
                response.set_exception(error)

        try:
            with SchemaRegistryClient(_client_options(self.settings)) as client:  # a closed client ends the thread
                threading.Thread(target=run, name="schema-registry", daemon=True).start()
                return response.result(self.settings.timeout_seconds), None
        except Exception as error:
            return None, refusal(error) or error


def _client_options(settings: SchemaRegistrySettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "url": settings.url,
        "timeout": settings.timeout_seconds / len((settings.url or "").split(",")),
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


def refusal(error: Exception) -> SchemaRefused | None:
    """Return the error if the registry itself refused the request, or ``None`` if a login, proxy or server failed."""
    if not isinstance(error, SchemaRegistryError) or error.http_status_code not in (404, 409, 422):
        return None
    text, code = " ".join(str(error.error_message).split())[:_MOST_TEXT], error.error_code
    return SchemaRefused(f"{text} ({code})", code) if code in _REFUSALS else None


def _reason(error: Exception) -> str:
    """Return a reason without the error's text, which may quote a credential."""
    if isinstance(error, SchemaRegistryError):
        return f"status {error.http_status_code}"
    name = type(error).__name__
    return _NO_ANSWER if name.endswith(("TimeoutError", "Timeout")) else name
