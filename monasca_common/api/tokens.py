# SPDX-License-Identifier: Apache-2.0
"""Validation of tokens by keystonemiddleware, with the settings of ``[keystone_authtoken]``.

This module adds a deadline for all requests of a validation, a limit on the requests that wait for Keystone, a bounded
in-process cache, different messages (status 503) for an outage and for wrong settings, and a check of the settings.

A client that cannot renew tokens, such as Prometheus, sends an application credential as HTTP Basic (its id as the
user, its secret as the password). This module exchanges the credential for a token, which it caches and validates.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any

import webob
from cachetools import TTLCache
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading
from keystoneauth1.identity import v3
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
_MAX_CREDENTIALS = 10_000
_CACHE_ENTRY_BYTES = 512  # Python's overhead per entry, in addition to the text
_MAX_REASON = 500  # maximum length in characters, so that a web page at Keystone's address does not fill the log

_SILENT = (
    "the identity service does not respond, so the token cannot be validated and the request was refused: repeat it "
    "later"
)
_MISCONFIGURED = (
    "this API is not configured correctly for its identity service, so tokens cannot be validated and the request was "
    "refused: the log of the API contains the reason"
)

# A user with a password requires one option from each line.
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
    REFUSED = "refused"  # too many requests waited for Keystone


Observe = Callable[[ValidationOutcome, float], None]


def set_defaults() -> None:
    """Reduce the time-out and the number of attempts of keystonemiddleware; the sample generator also calls this."""
    options = [option for _, listed in auth_token.AUTH_TOKEN_OPTS for option in listed]
    cfg.set_defaults(options, http_connect_timeout=_TIMEOUT_SECONDS, http_request_max_retries=_RETRIES)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the options for a user with a password, for the sample generator, because keystonemiddleware does not list
    them."""
    return [(GROUP, loading.get_auth_plugin_conf_options("password"))]


def authenticated(
    app: WsgiApp, conf: cfg.ConfigOpts, max_waiting: int = 1, observe: Observe = lambda _outcome, _seconds: None
) -> WsgiApp:
    """Return ``app`` wrapped in keystonemiddleware, which refuses requests without a valid token (401) and removes
    forged identity headers.

    ``max_waiting``: the maximum number of requests that wait for Keystone; further requests get status 503.
    ``observe``: called with the outcome and the seconds of each validation. Raises `ConfigurationError` for invalid
    settings, without connecting to Keystone.
    """
    set_defaults()
    for name, listed in auth_token.list_opts():
        conf.register_opts(listed, group=name)
    # The service catalog is the largest part of a token; only access rules need it, and they require service_type.
    conf.set_default("include_service_catalog", bool(conf[GROUP].service_type), group=GROUP)
    _check(conf)
    try:
        return Tokens(app, conf, max_waiting, observe)
    except (auth_token.ConfigurationError, keystone_exceptions.ClientException, cfg.Error) as error:
        raise ConfigurationError(f"[{GROUP}]: {error}") from error


def _check(conf: cfg.ConfigOpts) -> None:
    """Refuse settings with which keystonemiddleware would fail for every request."""
    group = conf[GROUP].auth_section or GROUP
    loading.register_auth_conf_options(conf, group)
    auth_type = conf[group].auth_type
    if auth_type in (None, "password"):
        conf.register_opts(loading.get_auth_plugin_conf_options("password"), group=group)
        needs = [one_of.split() for one_of in ("auth_type", *_PASSWORD_NEEDS)]
        missing = [" or ".join(one_of[:2]) for one_of in needs if not any(conf[group][name] for name in one_of)]
        if missing:
            raise ConfigurationError(
                f"auth_strategy in group [api] is keystone, but options are missing in [{group}]: set "
                f"{', '.join(missing)}. For a trial without Keystone, set auth_strategy = noauth"
            )
    values = conf[GROUP]
    for name in ("cafile", "certfile", "keyfile"):
        path = values[name]
        if path and not os.path.isfile(path):
            raise ConfigurationError(f"{name} in group [{GROUP}] is {path}, which is not a file: correct the path")
    client = "bmemcached" if values.memcache_sasl_enabled or values.memcache_tls_enabled else "memcache"
    if values.memcached_servers and importlib.util.find_spec(client) is None:
        raise ConfigurationError(
            f"memcached_servers in group [{GROUP}] is set, but the module {client} is not installed: install "
            "monasca-common[memcached], or remove the option, so that each worker caches tokens"
        )


class TokenCache:
    """An LRU cache of Keystone's responses, limited by age and by a total size of 64 MiB. Thread-safe.

    It replaces keystonemiddleware's in-process cache, which is deprecated and unbounded.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._texts: TTLCache[bytes, str] = TTLCache(
            _MAX_CACHED_BYTES, max(0, seconds), monotonic, getsizeof=lambda text: len(text) + _CACHE_ENTRY_BYTES
        )

    def initialize(self, _environ: object) -> None:
        pass

    def get(self, token: str) -> Any:
        with self._lock:
            text = self._texts.get(_cache_key(token))
        return None if text is None else json.loads(text)

    def set(self, token: str, data: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):  # a response larger than the cache
            self._texts[_cache_key(token)] = json.dumps(data)


def _cache_key(token: str) -> bytes:
    return sha256(token.encode()).digest()


class Undecided(Exception):
    """Keystone's response does not show whether a token is valid, or there is no response."""

    def __init__(self, outcome: ValidationOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Tokens(auth_token.AuthProtocol):  # type: ignore[misc]  # the base class has no annotations
    def __init__(self, app: WsgiApp, conf: cfg.ConfigOpts, max_waiting: int, observe: Observe) -> None:
        options = conf[GROUP]
        tries = 1 + options.http_request_max_retries
        self._deadline = _KeystoneDeadline((options.http_connect_timeout or _TIMEOUT_SECONDS) * tries)
        self._slots = threading.BoundedSemaphore(max_waiting)
        self._observe = observe
        # If the decision were delayed, every token would count as invalid while Keystone is unavailable.
        super().__init__(app, {"oslo_config_config": conf, "delay_auth_decision": False})
        if not options.memcached_servers:
            self._token_cache = TokenCache(options.token_cache_time)
        self._auth_url = getattr(conf[options.auth_section or GROUP], "auth_url", None)
        # The tokens of application credentials, by the hash of the credential.
        self._exchanged: TTLCache[bytes, str] = TTLCache(_MAX_CREDENTIALS, max(0, options.token_cache_time))
        self._lock = threading.Lock()

    def _create_session(self, **named: Any) -> Any:
        session = super()._create_session(**named)
        for scheme in ("http://", "https://"):
            session.session.mount(scheme, self._deadline)
        return session

    def process_request(self, request: Any) -> Any:
        try:
            credential = _basic(request.environ)
            if credential is None or not self._auth_url:
                return super().process_request(request)
            return self._process_credential(request, credential)
        except Undecided as undecided:
            note_reason(request.environ, Reason.KEYSTONE)
            message = _MISCONFIGURED if undecided.outcome is ValidationOutcome.MISCONFIGURED else _SILENT
            body = error_body(503, "Service Unavailable", message)
            return webob.Response(json_body=body, status=503, retry_after=RETRY_AFTER_SECONDS)

    def _process_credential(self, request: Any, credential: bytes) -> Any:
        for renewed in (False, True):
            with contextlib.suppress(auth_token.InvalidToken):  # the request then has no token, and is refused
                request.headers["X-Auth-Token"] = self._token_of(credential, renewed=renewed)
            try:
                return super().process_request(request)
            except webob.exc.HTTPUnauthorized:
                if renewed or "X-Auth-Token" not in request.headers:
                    raise
        return None

    def _token_of(self, credential: bytes, *, renewed: bool) -> str:
        """Return a token for an application credential. ``renewed``: request a new token, because Keystone may have
        revoked the cached token.

        Raises `InvalidToken` and `Undecided`.
        """
        key = sha256(credential).digest()
        with self._lock:
            token = None if renewed else self._exchanged.get(key)
        if token is None:
            user, _, secret = credential.decode(errors="replace").partition(":")
            plugin = v3.ApplicationCredential(
                f"{str(self._auth_url).rstrip('/').removesuffix('/v3')}/v3",
                application_credential_id=user,
                application_credential_secret=secret,
                include_catalog=False,
            )
            token = str(self._ask(lambda: _exchange(plugin, self._session)))
            with self._lock:
                self._exchanged[key] = token
        return token

    def fetch_token(self, token: str, allow_expired: bool = False) -> Any:
        """Return Keystone's response. Raises `Undecided` if there is no response, or if ``max_waiting`` requests are
        already waiting."""
        if (cached := self._token_cache.get(token)) is not None:
            return cached
        data = self._ask(lambda: self._identity_server.verify_token(token, allow_expired=allow_expired))
        self._token_cache.set(token, data)
        return data

    def _ask(self, request: Callable[[], Any]) -> Any:
        """Return the result of a request to Keystone. Raises `InvalidToken` and `Undecided`."""
        if not self._slots.acquire(blocking=False):
            self._observe(ValidationOutcome.REFUSED, 0.0)
            raise Undecided(ValidationOutcome.REFUSED)
        began, outcome = time.monotonic(), ValidationOutcome.VALID
        self._deadline.begin()
        try:
            return request()
        except Exception as error:  # keystoneauth raises KeyError and other errors for malformed responses
            outcome = _outcome(error)
            if outcome is ValidationOutcome.INVALID:
                raise
            if isinstance(error, keystone_exceptions.EndpointNotFound):
                self._identity_server.invalidate()
            raise Undecided(outcome) from error
        finally:
            self._slots.release()
            self._observe(outcome, time.monotonic() - began)


class _KeystoneDeadline(TCPKeepAliveAdapter):
    """Applies one deadline to all requests of a validation. Otherwise, threads that wait for keystoneauth's lock while
    another thread requests the API's own token would time out one after another.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._of_thread = threading.local()

    def begin(self) -> None:
        self._of_thread.at = time.monotonic() + self._seconds

    def send(self, request: Any, *arguments: Any, **named: Any) -> Any:
        # keystoneauth neither converts nor retries a TimeoutError.
        left = getattr(self._of_thread, "at", float("inf")) - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"Keystone has not responded within {self._seconds} s")
        named["timeout"] = min(named.get("timeout") or left, left)
        return super().send(request, *arguments, **named)


def _basic(environ: Mapping[str, Any]) -> bytes | None:
    """Return the user and password of HTTP Basic, or ``None`` if they are missing or the request has a token."""
    scheme, _, encoded = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "basic" or "HTTP_X_AUTH_TOKEN" in environ:
        return None
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    return decoded if all(decoded.partition(b":")) else None


def _exchange(plugin: Any, session: Any) -> str:
    # Keystone returns 404 for a deleted credential.
    with contextlib.suppress(
        keystone_exceptions.Unauthorized, keystone_exceptions.BadRequest, keystone_exceptions.NotFound
    ):
        return str(plugin.get_token(session))
    raise auth_token.InvalidToken("Keystone refuses the application credential")


def _outcome(error: Exception) -> ValidationOutcome:
    """Return the outcome of a failed validation. Unless the token is invalid, log the reason, which clients do not
    see."""
    causes = list(_chain(error))
    # Only the request for the API's own token uses POST; if it returns 404, auth_url is not a Keystone server.
    is_own = any(isinstance(cause, keystone_exceptions.NotFound) and cause.method == "POST" for cause in causes)
    if isinstance(error, auth_token.InvalidToken) and not is_own:
        return ValidationOutcome.INVALID
    reason = " <- ".join(dict.fromkeys(f"{type(cause).__name__}: {cause}"[:_MAX_REASON] for cause in causes))
    if any(map(_is_temporary, causes)):
        LOG.warning("a token cannot be validated because Keystone does not respond: %s", reason)
        return ValidationOutcome.SILENT
    LOG.error("a token cannot be validated because Keystone rejects this API; correct [%s]: %s", GROUP, reason)
    return ValidationOutcome.MISCONFIGURED


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_temporary(cause: BaseException) -> bool:
    """Return whether a later validation may succeed with the same settings."""
    if isinstance(cause, keystone_exceptions.HttpError):
        return bool(cause.http_status >= 500 or cause.http_status == 429)
    return isinstance(cause, keystone_exceptions.RetriableConnectionFailure | TimeoutError)
