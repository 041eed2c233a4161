# SPDX-License-Identifier: Apache-2.0
"""Tokens, validated by Keystone through keystonemiddleware as ``[keystone_authtoken]`` says.

This adds what keystonemiddleware lacks: one deadline for all requests of a validation, a bound on how many requests
wait for Keystone, a bounded cache in the process, 503 as JSON with a distinction between an outage and wrong
settings, and a check of the settings at the start.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec
import webob
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading
from keystoneauth1.session import TCPKeepAliveAdapter
from keystonemiddleware import auth_token
from oslo_config import cfg

from monasca_common.api.limits import RETRY_AFTER_SECONDS, WsgiApp
from monasca_common.api.log_fields import Reason, note_reason
from monasca_common.api.problems import error_body
from monasca_common.kafka.errors import ConfigurationError

LOG = logging.getLogger(__name__)

GROUP = "keystone_authtoken"
_TIMEOUT_SECONDS = 5
_RETRIES = 1
_MAX_CACHED_BYTES = 64 * 1024 * 1024
_CACHE_ENTRY_BYTES = 512  # that Python needs in addition to the text
_MAX_REASON = 500  # characters: a web page in place of Keystone would be in the log whole

# Which options a user with a password needs: one of each line.
_SCOPE = "project_id system_scope domain_name domain_id trust_id"
_PASSWORD_NEEDS = (
    "auth_url",
    "username user_id",
    "password",
    "user_domain_name user_domain_id user_id default_domain_name default_domain_id",
    f"project_name {_SCOPE}",
    f"project_domain_name project_domain_id default_domain_name default_domain_id {_SCOPE}",
)


class ValidationOutcome(StrEnum):
    """The outcome of a request to Keystone about a token."""

    VALID = "valid"
    INVALID = "invalid"
    SILENT = "silent"
    MISCONFIGURED = "misconfigured"
    REFUSED = "refused"  # because as many requests waited as may


Observe = Callable[[ValidationOutcome, float], None]


def set_defaults() -> None:
    """Bound what keystonemiddleware leaves unbounded; called by the generator of sample files as well."""
    options = [option for _, listed in auth_token.AUTH_TOKEN_OPTS for option in listed]
    cfg.set_defaults(options, http_connect_timeout=_TIMEOUT_SECONDS, http_request_max_retries=_RETRIES)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """The options of a user with a password, which keystonemiddleware's own list lacks, for the generator of sample
    files."""
    return [(GROUP, loading.get_auth_plugin_conf_options("password"))]


def authenticated(
    app: WsgiApp, conf: cfg.ConfigOpts, max_waiting: int = 1, observe: Observe = lambda _outcome, _seconds: None
) -> WsgiApp:
    """``app`` behind keystonemiddleware, which answers 401 without a valid token, and strips the headers that pretend
    to come from it.

    ``max_waiting``: how many requests may wait for Keystone at a time; one more is answered 503. ``observe`` gets the
    outcome of each validation, and its seconds. Raises `ConfigurationError` for settings that cannot work; Keystone is
    not asked.
    """
    set_defaults()
    for name, listed in auth_token.list_opts():
        conf.register_opts(listed, group=name)
    # The catalog is a token's largest part, and only rules of access need it, which need service_type.
    conf.set_default("include_service_catalog", bool(conf[GROUP].service_type), group=GROUP)
    _check(conf)
    try:
        return Tokens(app, conf, max_waiting, observe)
    except (auth_token.ConfigurationError, keystone_exceptions.ClientException, cfg.Error) as error:
        raise ConfigurationError(f"[{GROUP}]: {error}") from error


def _check(conf: cfg.ConfigOpts) -> None:
    """Refuse what keystonemiddleware would fail with at each request."""
    group = conf[GROUP].auth_section or GROUP
    loading.register_auth_conf_options(conf, group)
    auth_type = conf[group].auth_type
    if auth_type in (None, "password"):
        conf.register_opts(loading.get_auth_plugin_conf_options("password"), group=group)
        needs = [one_of.split() for one_of in ("auth_type", *_PASSWORD_NEEDS)]
        missing = [" or ".join(one_of[:2]) for one_of in needs if not any(conf[group][name] for name in one_of)]
        if missing:
            raise ConfigurationError(
                f"auth_strategy in group [api] is keystone, but [{group}] does not say how to reach it: set "
                f"{', '.join(missing)}. To try out without Keystone, set auth_strategy = noauth"
            )
    values = conf[GROUP]
    for name in ("cafile", "certfile", "keyfile"):
        path = values[name]
        if path and not os.path.isfile(path):
            raise ConfigurationError(f"{name} in group [{GROUP}] is {path}, which is not a file: correct the path")
    client = "bmemcached" if values.memcache_sasl_enabled or values.memcache_tls_enabled else "memcache"
    if values.memcached_servers and importlib.util.find_spec(client) is None:
        raise ConfigurationError(
            f"memcached_servers in group [{GROUP}] is set, but there is no module {client}: install "
            "monasca-common[memcached], or leave the option out, and each worker remembers tokens by itself"
        )


class TokenCache:
    """Keystone's answers until they expire. The least recently used are forgotten once all exceed 64 MiB. Thread-safe.

    It replaces keystonemiddleware's cache in the process, which is deprecated and has no bounds.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._bytes = 0

    def initialize(self, _environ: object) -> None:
        pass

    def get(self, token: str) -> Any:
        key = _cache_key(token)
        with self._lock:
            until, text = self._entries.get(key, (-math.inf, ""))
            if until <= self._monotonic():
                return None
            self._entries.move_to_end(key)
        return json.loads(text)

    def set(self, token: str, data: Any) -> None:
        key, text, now = _cache_key(token), json.dumps(data), self._monotonic()
        with self._lock:
            self._forget(key)
            self._entries[key] = now + self._seconds, text
            self._bytes += len(text) + _CACHE_ENTRY_BYTES
            while self._bytes > _MAX_CACHED_BYTES or self._first_expires_at() <= now:
                self._forget(next(iter(self._entries)))

    def _first_expires_at(self) -> float:
        return next(iter(self._entries.values()))[0] if self._entries else math.inf

    def _forget(self, key: bytes) -> None:
        if key in self._entries:
            _, text = self._entries.pop(key)
            self._bytes -= len(text) + _CACHE_ENTRY_BYTES


def _cache_key(token: str) -> bytes:
    return sha256(token.encode()).digest()


class Undecided(Exception):
    """Keystone did not say whether a token is valid."""

    def __init__(self, outcome: ValidationOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Tokens(auth_token.AuthProtocol):  # type: ignore[misc]  # it has no annotations
    def __init__(self, app: WsgiApp, conf: cfg.ConfigOpts, max_waiting: int, observe: Observe) -> None:
        options = conf[GROUP]
        tries = 1 + options.http_request_max_retries
        self._deadline = _KeystoneDeadline((options.http_connect_timeout or _TIMEOUT_SECONDS) * tries)
        self._places = threading.BoundedSemaphore(max_waiting)
        self._observe = observe
        # With a delayed decision every token would count as invalid while Keystone is unavailable.
        super().__init__(app, {"oslo_config_config": conf, "delay_auth_decision": False})
        if not options.memcached_servers:
            self._token_cache = TokenCache(options.token_cache_time)

    def _create_session(self, **named: Any) -> Any:
        session = super()._create_session(**named)
        for scheme in ("http://", "https://"):
            session.session.mount(scheme, self._deadline)
        return session

    def process_request(self, request: Any) -> Any:
        try:
            return super().process_request(request)
        except Undecided as undecided:
            note_reason(request.environ, Reason.KEYSTONE)
            body = _MISCONFIGURED if undecided.outcome is ValidationOutcome.MISCONFIGURED else _SILENT
            answer = webob.Response(body, 503, content_type="application/json", charset="UTF-8")
            answer.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
            return answer

    def fetch_token(self, token: str, allow_expired: bool = False) -> Any:
        """Raises `Undecided` without an answer, immediately if ``max_waiting`` requests wait for one already."""
        if (known := self._token_cache.get(token)) is not None:
            return known
        if not self._places.acquire(blocking=False):
            self._observe(ValidationOutcome.REFUSED, 0.0)
            raise Undecided(ValidationOutcome.REFUSED)
        began, outcome = time.monotonic(), ValidationOutcome.VALID
        self._deadline.begin()
        try:
            data = self._identity_server.verify_token(token, allow_expired=allow_expired)
            self._token_cache.set(token, data)
            return data
        except Exception as error:  # clients of Keystone raise KeyError and others for answers that make no sense
            outcome = _outcome(error)
            if outcome is ValidationOutcome.INVALID:
                raise
            if isinstance(error, keystone_exceptions.EndpointNotFound):
                self._identity_server.invalidate()
            raise Undecided(outcome) from error
        finally:
            self._places.release()
            self._observe(outcome, time.monotonic() - began)


class _KeystoneDeadline(TCPKeepAliveAdapter):
    """Ends every request of a validation by the deadline of its thread. Those that wait for the lock of keystoneauth
    while another gets the API's own token thus do not wait their full time one after the other."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._of_thread = threading.local()

    def begin(self) -> None:
        self._of_thread.at = time.monotonic() + self._seconds

    def send(self, request: Any, *arguments: Any, **named: Any) -> Any:
        # keystoneauth neither translates nor repeats a TimeoutError.
        left = getattr(self._of_thread, "at", float("inf")) - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"Keystone has not answered within {self._seconds} s")
        named["timeout"] = min(named.get("timeout") or left, left)
        return super().send(request, *arguments, **named)


def _outcome(error: Exception) -> ValidationOutcome:
    """Log the reason, which callers do not see, unless the token is invalid."""
    causes = list(_chain(error))
    # The API's own token is the only one that is posted for: if that is not found, there is no Keystone at auth_url.
    is_own = any(isinstance(cause, keystone_exceptions.NotFound) and cause.method == "POST" for cause in causes)
    if isinstance(error, auth_token.InvalidToken) and not is_own:
        return ValidationOutcome.INVALID
    reason = " <- ".join(dict.fromkeys(f"{type(cause).__name__}: {cause}"[:_MAX_REASON] for cause in causes))
    if any(map(_is_silence, causes)):
        LOG.warning("A token cannot be validated, because Keystone does not answer: %s", reason)
        return ValidationOutcome.SILENT
    LOG.error("A token cannot be validated, because Keystone does not serve this API: correct [%s]: %s", GROUP, reason)
    return ValidationOutcome.MISCONFIGURED


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_silence(cause: BaseException) -> bool:
    """Whether it may pass by itself, with the same settings."""
    if isinstance(cause, keystone_exceptions.HttpError):
        return bool(cause.http_status >= 500 or cause.http_status == 429)
    return isinstance(cause, keystone_exceptions.RetriableConnectionFailure | TimeoutError)


def _body(message: str) -> bytes:
    return msgspec.json.encode(error_body(503, "Service Unavailable", message))


_SILENT = _body(
    "the identity service does not answer, so the token cannot be validated; nothing of the request was taken: send "
    "it again later"
)
_MISCONFIGURED = _body(
    "this API is not set up to use its identity service, so no token can be validated; nothing of the request was "
    "taken: its operator finds the reason in its log"
)
