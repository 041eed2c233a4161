# SPDX-License-Identifier: Apache-2.0
"""Tokens, validated by Keystone through keystonemiddleware as ``[keystone_authtoken]`` says.

What keystonemiddleware leaves open is bounded here: a Keystone that does not answer costs a request a known time,
takes no thread from requests whose token is cached, and is not confused with settings that cannot work.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import requests.exceptions
import webob
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading
from keystoneauth1.session import TCPKeepAliveAdapter
from keystonemiddleware import auth_token
from oslo_config import cfg

from monasca_common.api.limits import RETRY_AFTER_SECONDS, Environ, StartResponse, WsgiApp
from monasca_common.api.notes import Reason, note_reason
from monasca_common.api.problems import error_body
from monasca_common.kafka.errors import ConfigurationError

LOG = logging.getLogger(__name__)

GROUP = "keystone_authtoken"
_TIMEOUT_SECONDS = 5
_RETRIES = 1
_MAX_CACHED_BYTES = 64 * 1024 * 1024
_MAX_REASON = 500  # characters: a web page in place of Keystone would be in the log whole
_CACHE = "monasca.token_cache"  # in the environment of a request: where keystonemiddleware looks for it

# Which options a user with a password needs: one of each line.
_PASSWORD_NEEDS = (
    ("auth_url",),
    ("username", "user_id"),
    ("password",),
    ("user_domain_name", "user_domain_id", "user_id", "default_domain_name", "default_domain_id"),
    ("project_name", "project_id", "system_scope", "domain_name", "domain_id", "trust_id"),
    (
        "project_domain_name",
        "project_domain_id",
        "project_id",
        "system_scope",
        "domain_name",
        "domain_id",
        "trust_id",
        "default_domain_name",
        "default_domain_id",
    ),
)
_FILES = ("cafile", "certfile", "keyfile")
_SAMPLES = {
    "auth_type": "password",
    "auth_url": "https://keystone.example.org:5000/v3",
    "username": "monasca",
    "password": "a-secret",  # nosec B105
    "user_domain_name": "Default",
    "project_name": "service",
    "project_domain_name": "Default",
}


class ValidationOutcome(StrEnum):
    """What came of asking Keystone about a token."""

    VALID = "valid"
    INVALID = "invalid"
    SILENT = "silent"
    MISCONFIGURED = "misconfigured"
    REFUSED = "refused"  # as many requests waited as may


Observe = Callable[[ValidationOutcome, float], None]


def _unobserved(_outcome: ValidationOutcome, _seconds: float) -> None:
    pass


def set_defaults() -> None:
    """Bound what keystonemiddleware leaves unbounded; called by the generator of sample files as well."""
    options = [option for _, listed in auth_token.AUTH_TOKEN_OPTS for option in listed]
    cfg.set_defaults(options, http_connect_timeout=_TIMEOUT_SECONDS, http_request_max_retries=_RETRIES)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """The options of a user with a password, which keystonemiddleware's own list lacks, for the generator of sample
    files."""
    options = loading.get_auth_plugin_conf_options("password")
    for option in options:
        option.sample_default = _SAMPLES.get(option.dest)
    return [(GROUP, options)]


def check_settings(conf: cfg.ConfigOpts) -> None:
    """Raise `ConfigurationError` for settings that lack what reaching Keystone takes; nobody is asked."""
    _check_named(conf)
    _middleware(lambda *_: [], conf, max_waiting=1, observe=_unobserved)


def _check_named(conf: cfg.ConfigOpts) -> None:
    set_defaults()
    for group, options in auth_token.list_opts():
        conf.register_opts(options, group=group)
    group = conf[GROUP].auth_section or GROUP
    loading.register_auth_conf_options(conf, group)
    auth_type = conf[group].auth_type
    try:
        options = loading.get_auth_plugin_conf_options(auth_type or "password")
    except keystone_exceptions.NoMatchingPlugin as error:
        raise ConfigurationError(
            f"auth_type in group [{group}] is {auth_type!r}, which is not installed: use password, or install what "
            "provides it"
        ) from error
    conf.register_opts(options, group=group)
    missing = [] if auth_type else ["auth_type"]
    missing += _missing(conf[group], options)
    if missing:
        raise ConfigurationError(
            f"auth_strategy in group [api] is keystone, but [{group}] does not say how to reach it: set "
            f"{', '.join(missing)}. To try out without Keystone, set auth_strategy = noauth"
        )
    for name in _FILES:
        path = conf[GROUP][name]
        if path and not os.path.isfile(path):
            raise ConfigurationError(f"{name} in group [{GROUP}] is {path}, which is not a file: correct the path")
    _check_memcached(conf)


def _missing(values: cfg.ConfigOpts.GroupAttr, options: Sequence[cfg.Opt]) -> list[str]:
    names = {option.dest for option in options}
    needs: Iterable[Sequence[str]] = ((option.dest,) for option in options if option.required)
    if {"auth_url", "username", "password"} <= names:
        needs = _PASSWORD_NEEDS
    return [" or ".join(one_of[:2]) for one_of in needs if not any(name in names and values[name] for name in one_of)]


def _check_memcached(conf: cfg.ConfigOpts) -> None:
    """keystonemiddleware would import the client within a request."""
    values = conf[GROUP]
    client = "bmemcached" if values.memcache_sasl_enabled or values.memcache_tls_enabled else "memcache"
    if values.memcached_servers and importlib.util.find_spec(client) is None:
        raise ConfigurationError(
            f"memcached_servers in group [{GROUP}] is set, but there is no module {client}: install "
            "monasca-common[memcached], or leave the option out, and each worker remembers tokens by itself"
        )


def authenticated(
    app: WsgiApp,
    conf: cfg.ConfigOpts,
    public: frozenset[str],
    max_waiting: int,
    observe: Observe = _unobserved,
) -> WsgiApp:
    """``app`` behind keystonemiddleware, which answers 401 without a valid token, and strips the headers that pretend
    to come from it. The paths ``public`` go past it.

    ``max_waiting``: how many requests may wait for Keystone at a time; one more is answered 503. ``observe``: see
    `Validations`. Raises `ConfigurationError`.
    """
    _check_named(conf)

    return AuthenticatedApp(app, _middleware(app, conf, max_waiting, observe), public)


class AuthenticatedApp:
    """``app`` for the paths ``public``, ``behind`` for all others. Thread-safe."""

    def __init__(self, app: WsgiApp, behind: WsgiApp, public: frozenset[str]) -> None:
        self._app = app
        self._behind = behind
        self._public = public
        self._cache = TokenCache(_MAX_CACHED_BYTES)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") in self._public:
            return self._app(environ, start_response)
        environ[_CACHE] = self._cache
        return self._behind(environ, start_response)


def _middleware(app: WsgiApp, conf: cfg.ConfigOpts, max_waiting: int, observe: Observe) -> WsgiApp:
    # The catalog is a token's largest part, and only rules of access need it, which need service_type.
    conf.set_default("include_service_catalog", bool(conf[GROUP].service_type), group=GROUP)
    try:
        return _Tokens(app, conf, max_waiting, observe)
    except (auth_token.ConfigurationError, keystone_exceptions.ClientException, cfg.Error) as error:
        raise ConfigurationError(f"[{GROUP}]: {error}") from error


class TokenCache:
    """What Keystone said of tokens, until it is too old or, the least recently used first, too much: ``max_bytes``.
    Thread-safe.

    keystonemiddleware's own in the process is one for each of the requests that ask at the same time, so it forgets
    by chance, and it has no bounds.
    """

    def __init__(self, max_bytes: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> bytes | None:
        with self._lock:
            until, value = self._kept.get(key, (0.0, None))
            if value is None:
                return None
            if until <= self._monotonic():
                self._forget(key)
                return None
            self._kept.move_to_end(key)
            return value

    def set(self, key: str, value: bytes, time: float = 0) -> None:
        """``time``: seconds; a negative one keeps nothing, as ``token_cache_time = -1`` says."""
        with self._lock:
            self._forget(key)
            if time <= 0:
                return
            self._kept[key] = (self._monotonic() + time, value)
            self._bytes += len(value)
            while self._bytes > self._max_bytes:
                self._forget(next(iter(self._kept)))

    def _forget(self, key: str) -> None:
        _, value = self._kept.pop(key, (0.0, b""))
        self._bytes -= len(value)


class Undecided(Exception):
    """Keystone did not say whether a token is valid; ``answer`` is the body that says so."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


class _Tokens(auth_token.AuthProtocol):  # type: ignore[misc]  # it has no annotations
    def __init__(self, app: WsgiApp, conf: cfg.ConfigOpts, max_waiting: int, observe: Observe) -> None:
        options = conf[GROUP]
        # The decision is not delayed, although public paths would then need no special case: with an unavailable
        # Keystone every token would count as invalid.
        settings = {"oslo_config_config": conf, "delay_auth_decision": False}
        if not options.memcached_servers:
            settings["cache"] = _CACHE
        tries = 1 + options.http_request_max_retries
        self._deadline = _KeystoneDeadline((options.http_connect_timeout or _TIMEOUT_SECONDS) * tries)
        self._max_waiting = max_waiting
        self._observe = observe
        super().__init__(app, settings)

    def _create_session(self, **named: Any) -> Any:
        session = super()._create_session(**named)
        for scheme in ("http://", "https://"):
            session.session.mount(scheme, _DeadlineAdapter(self._deadline))
        return session

    def _create_identity_server(self) -> Any:
        return Validations(super()._create_identity_server(), self._max_waiting, self._deadline, self._observe)

    def process_request(self, request: Any) -> Any:
        try:
            return super().process_request(request)
        except Undecided as undecided:
            note_reason(request.environ, Reason.KEYSTONE)
            answer = webob.Response(undecided.answer, 503, content_type="application/json", charset="UTF-8")
            answer.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
            return answer


class _KeystoneDeadline(threading.local):
    """When the validation of this thread must be over, whatever it is made of."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = float("inf")  # monotonic

    def left(self) -> float:
        return self.at - time.monotonic()

    def begin(self) -> None:
        self.at = time.monotonic() + self.seconds


class _TooLate(requests.exceptions.RequestException):
    """Not a time-out, because keystoneauth would try again."""


class _DeadlineAdapter(TCPKeepAliveAdapter):
    """Every request of a validation ends by its deadline. Those that wait for the lock of keystoneauth while another
    asks for the API's own token thus do not wait their full time one after the other."""

    def __init__(self, deadline: _KeystoneDeadline) -> None:
        super().__init__()
        self._deadline = deadline

    def send(self, request: Any, *arguments: Any, **named: Any) -> Any:
        left = self._deadline.left()
        if left <= 0:
            raise _TooLate(f"Keystone has not answered within {self._deadline.seconds} s")
        named["timeout"] = min(named.get("timeout") or left, left)
        return super().send(request, *arguments, **named)


class Validations:
    """Stands in front of keystonemiddleware's ``server``, which is asked for what is not cached. Raises `Undecided`
    where there is no answer, at once where ``max_waiting`` requests wait for one already. ``observe`` gets what came
    of each token, and the seconds that it took."""

    def __init__(self, server: Any, max_waiting: int, deadline: _KeystoneDeadline, observe: Observe) -> None:
        self._server = server
        self._deadline = deadline
        self._observe = observe
        self._places = threading.BoundedSemaphore(max_waiting)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def verify_token(self, *arguments: Any, **named: Any) -> Any:
        if not self._places.acquire(blocking=False):
            self._observe(ValidationOutcome.REFUSED, 0.0)
            raise Undecided(_SILENT)
        self._deadline.begin()
        began, outcome = time.monotonic(), ValidationOutcome.VALID
        try:
            return self._server.verify_token(*arguments, **named)
        except Exception as error:  # clients of Keystone raise KeyError and others for answers that make no sense
            if isinstance(error, auth_token.InvalidToken) and not _concerns_our_own(error):
                outcome = ValidationOutcome.INVALID
                raise
            if isinstance(error, keystone_exceptions.EndpointNotFound):
                self._server.invalidate()
            outcome = _explained(error)
            raise Undecided(_SILENT if outcome is ValidationOutcome.SILENT else _MISCONFIGURED) from error
        finally:
            self._places.release()
            self._observe(outcome, time.monotonic() - began)


def _concerns_our_own(error: Exception) -> bool:
    """Whether the API's own token, which alone is posted for, was not found: there is no Keystone at auth_url."""
    return any(isinstance(cause, keystone_exceptions.NotFound) and cause.method == "POST" for cause in _chain(error))


def _explained(error: Exception) -> ValidationOutcome:
    """Logs the reason, which callers are not told."""
    causes = list(_chain(error))
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
    return isinstance(cause, keystone_exceptions.RetriableConnectionFailure | _TooLate)


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
