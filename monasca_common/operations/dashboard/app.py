# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: routes, access control and security headers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import falcon
from oslo_config import cfg

from monasca_common.kafka import MessagingError
from monasca_common.operations.dashboard import lag_panel
from monasca_common.operations.dashboard.pages import ON_PAGE, STATIC_TYPES, Pages, static_file
from monasca_common.operations.dashboard.panels import Panels
from monasca_common.operations.dashboard.passwords import PasswordFile
from monasca_common.operations.dashboard.sessions import Account, LoginAttempts, Sessions
from monasca_common.operations.dashboard.settings import DashboardSettings, is_loopback
from monasca_common.operations.dashboard.view import page_of

LOG = logging.getLogger(__name__)

_PUBLIC = ("/login", "/healthcheck", "/static/")
_FORM = "application/x-www-form-urlencoded"
_MAX_FORM_BYTES = 8192
_MAX_FIELD = 1024
_CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_HSTS_SECONDS = 31_536_000


class DashboardLogin(Protocol):
    """Returns the user's account, or ``None`` if access is refused. Raises `MessagingError` if it cannot decide."""

    def log_in(self, user: str, password: str, project: str) -> Account | None: ...


def login_of(settings: DashboardSettings, conf: cfg.ConfigOpts) -> DashboardLogin | None:
    """Return the configured login, or ``None`` if no login is required. Raises `ConfigurationError`."""
    if settings.login == "none":
        return None
    if settings.login == "file":
        assert settings.password_file is not None, "the settings were checked"
        return PasswordFile(Path(settings.password_file))
    from monasca_common.operations.dashboard.keystone_login import KeystoneLogin

    return KeystoneLogin(settings, conf)


def make_app(
    settings: DashboardSettings,
    panels: Panels,
    login: DashboardLogin | None,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Any:
    """Return the WSGI application. ``login``: ``None`` if no login is required. ``now``: monotonic seconds."""
    pages = Pages()
    gate = _Gate(settings, login, Sessions(settings.session_seconds, now), now)
    app: Any = falcon.App(media_type=falcon.MEDIA_HTML, middleware=[_Headers(settings), gate])
    app.req_options.strip_url_path_trailing_slash = True
    app.set_error_serializer(_error_page(pages))
    app.add_error_handler(Exception, _failed)
    app.add_route("/", _Overview(panels, pages))
    app.add_route("/healthcheck", _DashboardHealth())
    app.add_route("/static/{name}", _Static())
    app.add_route("/{name}", _Panel(panels, pages))
    if login is not None:
        app.add_route("/login", _LoginPage(gate, login, pages, settings))
        app.add_route("/logout", _Logout(gate))
    return app


class _Headers:
    """Falcon middleware: sets the headers of every response."""

    def __init__(self, settings: DashboardSettings) -> None:
        self._headers = dict(_HEADERS)
        if settings.browsers_have_tls:
            self._headers["Strict-Transport-Security"] = f"max-age={_HSTS_SECONDS}"

    def process_response(
        self, _request: falcon.Request, response: falcon.Response, _resource: object, _succeeded: bool
    ) -> None:
        response.set_headers(self._headers)


class _Gate:
    """Falcon middleware: requires a login, and refuses forms from other sites."""

    def __init__(
        self,
        settings: DashboardSettings,
        login: DashboardLogin | None,
        sessions: Sessions,
        now: Callable[[], float],
    ) -> None:
        self._is_local = settings.is_local
        self._has_login = login is not None
        self._is_secure = settings.browsers_have_tls
        self.sessions = sessions
        self.attempts = LoginAttempts(now)
        self._cookie = f"{'__Host-' if self._is_secure else ''}monasca-session"

    def process_request(self, request: falcon.Request, response: falcon.Response) -> None:
        request.context.user = None
        # An attacker's host name can resolve to this machine (DNS rebinding).
        if self._is_local and not is_loopback(_host_of(request)):
            raise falcon.HTTPBadRequest(
                title="Wrong host name", description="Use the address at which the dashboard listens."
            )
        if request.method == "POST" and request.get_header("Sec-Fetch-Site") not in (None, "same-origin", "none"):
            raise falcon.HTTPForbidden(title="Another site sent this form", description="Nothing was changed.")
        if not self._has_login:
            return
        request.context.user = self.sessions.find(self.cookie(request))
        if request.context.user is None and not request.path.startswith(_PUBLIC):
            raise falcon.HTTPSeeOther(f"/login?then={quote(request.relative_uri, safe='')}")

    def cookie(self, request: falcon.Request) -> str:
        return (request.get_cookie_values(self._cookie) or [""])[0]

    def set_cookie(self, response: falcon.Response, value: str, seconds: float) -> None:
        response.set_cookie(
            self._cookie,
            value,
            max_age=round(seconds),
            path="/",
            secure=self._is_secure,
            http_only=True,
            same_site="Strict",
        )


class _PanelsPage:
    def __init__(self, panels: Panels, pages: Pages) -> None:
        self._panels = panels
        self._pages = pages


class _Overview(_PanelsPage):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        response.text = self._pages.overview(self._panels.views(), request.context.user, self._panels.now_ms)


class _Panel(_PanelsPage):
    """The pages of one panel: its rows, or the partitions of one consumer group."""

    def on_get(self, request: falcon.Request, response: falcon.Response, name: str) -> None:
        views = self._panels.views()
        view = next((each for each in views if each.name == name), None)
        group = request.get_param("group") if name == lag_panel.EMPTY.name else None
        if view is not None and group:
            figures = self._panels.group(group)
            view = replace(lag_panel.group_panel(figures), stale=view.stale) if figures is not None else None
        if view is None:
            raise falcon.HTTPNotFound(
                title="Page not found", description="The content of this page may no longer exist. See the overview."
            )
        number = request.get_param_as_int("page", min_value=1, max_value=1_000_000, default=1)
        find = (request.get_param("find") or "")[:_MAX_FIELD]
        page = page_of(view.rows, number, find, ON_PAGE)
        response.text = self._pages.panel(views, view, page, request.context.user, self._panels.now_ms)


class _Static:
    def on_get(self, _request: falcon.Request, response: falcon.Response, name: str) -> None:
        data = static_file(name)
        if data is None:
            raise falcon.HTTPNotFound
        response.data, response.content_type = data, STATIC_TYPES[name]


class _DashboardHealth:
    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        response.content_type, response.text = falcon.MEDIA_TEXT, "OK\n"


class _LoginPage:
    def __init__(self, gate: _Gate, login: DashboardLogin, pages: Pages, settings: DashboardSettings) -> None:
        self._gate = gate
        self._login = login
        self._pages = pages
        self._settings = settings

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        self._form(request, response, "", _local_path(request.get_param("then") or "/"))

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        form = _form_of(request)
        then = _local_path(form.get("then", "/"))
        user = form.get("user", "")
        attempt = user.strip().casefold(), request.remote_addr
        wait = self._gate.attempts.reserve(*attempt)
        if wait:
            response.status = falcon.HTTP_429
            response.set_header("Retry-After", str(round(wait) + 1))
            self._form(request, response, f"Too many wrong passwords. Try again in {round(wait) + 1} seconds.", then)
            return
        try:
            account = self._login.log_in(user, form.get("password", ""), form.get("project", ""))
        except MessagingError as error:
            LOG.warning("logins fail: %s", error)
            response.status = falcon.HTTP_503
            self._form(request, response, "Login is temporarily unavailable: see the log of the dashboard.", then)
            return
        if account is None:
            LOG.warning("login of %r from %s refused", user[:64], request.remote_addr)
            response.status = falcon.HTTP_401
            self._form(request, response, "Login refused: check the user, the password and the role.", then)
            return
        self._gate.attempts.succeeded(*attempt)
        LOG.info("%r logged in from %s", user, request.remote_addr)
        cookie = self._gate.sessions.open(account)
        self._gate.set_cookie(response, cookie, self._settings.session_seconds)
        response.status = falcon.HTTP_303
        response.set_header("Location", then)

    def _form(self, request: falcon.Request, response: falcon.Response, error: str, then: str) -> None:
        has_project = self._settings.login == "keystone"
        response.text = self._pages.login(request.context.user, error=error, has_project=has_project, then=then)


class _Logout:
    def __init__(self, gate: _Gate) -> None:
        self._gate = gate

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        self._gate.sessions.close(self._gate.cookie(request))
        self._gate.set_cookie(response, "", 0)
        response.status = falcon.HTTP_303
        response.set_header("Location", "/login")


def _host_of(request: falcon.Request) -> str:
    """Return the requested host name, or an empty string if it is invalid."""
    try:
        return request.host.strip("[]")
    except ValueError:  # the port is not a number
        return ""


def _form_of(request: falcon.Request) -> dict[str, str]:
    """Return the fields of a form. Raises Falcon's errors for a wrong content type, a long form and a slow client."""
    if (request.content_type or "").partition(";")[0] != _FORM:
        raise falcon.HTTPUnsupportedMediaType(title="This is not a form")
    if request.content_length is None or request.content_length > _MAX_FORM_BYTES:
        raise falcon.HTTPContentTooLarge(title="This form is too long")
    try:
        text = request.bounded_stream.read(_MAX_FORM_BYTES).decode(errors="replace")
    except OSError:
        raise falcon.HTTPError(falcon.HTTP_408, title="This form was not received in time") from None
    fields = falcon.uri.parse_query_string(text, keep_blank=True)
    return {name: value[:_MAX_FIELD] for name, value in fields.items() if isinstance(value, str)}


def _local_path(target: str) -> str:
    """Return the path of the target if it is a page of the dashboard, otherwise the path of the overview."""
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\", "/log"))
    return target if is_ours and target.isascii() and target.isprintable() else "/"


def _error_page(pages: Pages) -> Callable[[falcon.Request, falcon.Response, falcon.HTTPError], None]:
    def serialize(request: falcon.Request, response: falcon.Response, error: falcon.HTTPError) -> None:
        user = getattr(request.context, "user", None)
        response.text = pages.error(user, error.title or "", error.description or "")
        response.content_type = falcon.MEDIA_HTML

    return serialize


def _failed(request: falcon.Request, _response: falcon.Response, error: Exception, _parameters: Any) -> None:
    if isinstance(error, (falcon.HTTPError, falcon.HTTPStatus)):
        raise error
    LOG.error("%s %s failed", request.method, request.uri_template, exc_info=error)
    raise falcon.HTTPInternalServerError(title="Internal error", description="See the log of the dashboard.")
