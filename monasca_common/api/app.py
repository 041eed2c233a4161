# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: its routes, and the layers around them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import falcon
from oslo_config import cfg

from monasca_common.alarms.address_keys import PLAIN, AddressKeys
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.errors import AlarmsError
from monasca_common.api import auth, openapi
from monasca_common.api.access import Access, log_handler
from monasca_common.api.alarm_bodies import AlarmsContext, of_alarms
from monasca_common.api.ingest import PostContext
from monasca_common.api.limits import (
    OTLP_LOGS,
    OTLP_METRICS,
    REMOTE_WRITE,
    RETRY_AFTER_SECONDS,
    InFlightLimit,
    WsgiApp,
    request_slots,
)
from monasca_common.api.log_fields import Reason
from monasca_common.api.own_metrics import ApiMetrics, MetricsPage
from monasca_common.api.problems import Problem, not_found, of_storage, serialize_error, unavailable
from monasca_common.api.publishing import Publishing
from monasca_common.api.resources import (
    alarm_definitions,
    alarms,
    events,
    health,
    logs,
    measurements,
    metrics,
    notification_methods,
    notifications,
    prometheus,
    silences,
)
from monasca_common.api.resources.versions import Version, Versions
from monasca_common.api.series_limit import SeriesLimit
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import ClosedError, ProducerPool
from monasca_common.kafka.extras import remedy
from monasca_common.runtime.envelopes import EnvelopeWriter
from monasca_common.storage.errors import NotSupported, StorageError
from monasca_common.storage.settings import RowLimits
from monasca_common.storage.sql.reader import SqlReader

LOG = logging.getLogger(__name__)


def make_app(
    settings: ApiSettings,
    producers: ProducerPool,
    reader: SqlReader | None = None,
    *,
    conf: cfg.ConfigOpts | None = None,
    probe: Callable[[], None] | None = None,
    limits: RowLimits | None = None,
    now: Callable[[], float] = time.time,
    alarms_database: AlarmsDatabase | None = None,
    keys: AddressKeys = PLAIN,
    tracing: str = "off",
) -> Access:
    """Return the application. It does not close the producers, the reader or the database. Requests that need a missing
    reader or database get status 501.

    ``conf`` contains [keystone_authtoken] and [oslo_policy]; it is required unless ``auth_strategy`` is noauth.
    ``probe``: see `health.producer_check`. ``limits``: the storage limits, which also apply to posts. ``now``: returns
    seconds since the epoch. ``keys``: the keys that encrypt the addresses of notification methods. ``tracing``: see
    `ConnectionSettings`. Raises `ConfigurationError` for invalid authentication settings or an unwritable access log.
    """
    middleware: Any
    if settings.auth_strategy == "noauth":
        middleware = auth.NoAuthentication(settings)
    else:
        assert conf is not None, "authentication needs its configuration"
        middleware = auth.Authorization(conf, trust_scope=settings.trust_scope_header)
    app: Any = _RoutedApp(middleware=[middleware, _Paths()])
    app.req_options.strip_url_path_trailing_slash = True
    app.set_error_serializer(serialize_error)
    app.add_error_handler(Exception, _failed)
    app.add_error_handler(ClosedError, _closing)
    app.add_error_handler(StorageError, _unreadable)
    app.add_error_handler(AlarmsError, _refused)
    app.add_route("/", Versions())
    app.add_route("/v2.0", Version())
    checked = health.Health(
        {"producer": health.producer_check(producers, probe), "storage": health.storage_check(reader)}
    )
    app.add_route("/healthcheck", checked)
    app.add_route("/readyz", checked)
    app.add_route("/healthz", health.Liveness())
    max_series = settings.max_series_per_tenant
    series_limit = SeriesLimit(max_series, settings.region, reader) if max_series else None
    publishing = Publishing(producers, settings)
    writers = _writers(settings)
    posts = PostContext(settings, publishing, limits or RowLimits(), series_limit, now, writers)
    transitions = writers.get("transitions")
    _add_routes(app, posts, reader, AlarmsContext(settings, alarms_database, now, keys, transitions))
    own_metrics = ApiMetrics(producers)
    if settings.status.port is None:
        app.add_route("/metrics", MetricsPage(own_metrics))
    app.add_route(openapi.PATH, openapi.OpenApi(settings))
    limited: WsgiApp = InFlightLimit(app, request_slots(settings), _authentication(settings, conf, own_metrics))
    if tracing != "off":
        from monasca_common.api.tracing import traced

        limited = traced(limited, app.routes)
    access = Access(limited, app.routes, own_metrics.count, log_handler(settings.access_log))
    own_metrics.before_read = access.flush
    return access


class _RoutedApp(falcon.App[Any, Any]):
    """``routes``: resources by URI template."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.routes: dict[str, Any] = {}

    def add_route(self, uri_template: str, resource: object, **named: Any) -> None:
        self.routes[uri_template] = resource
        super().add_route(uri_template, resource, **named)


def _writers(settings: ApiSettings) -> dict[str, EnvelopeWriter]:
    """Return the writer of each kind of message that is sent in Avro."""
    topics = {
        "metrics": (settings.metrics_format, settings.metrics_topic),
        "logs": (settings.logs_format, settings.logs_topic),
        "events": (settings.events_format, settings.events_topic),
        "transitions": (settings.transitions_format, settings.alarm_transitions_topic),
    }
    return {
        kind: EnvelopeWriter(settings.registry, kind, topic)
        for kind, (written, topic) in topics.items()
        if written == "avro" and settings.registry is not None
    }


def _authentication(
    settings: ApiSettings, conf: cfg.ConfigOpts | None, own_metrics: ApiMetrics
) -> Callable[[WsgiApp], WsgiApp]:
    """Return the layer that validates tokens. Requests that wait for Keystone have separate slots, so that the API
    continues to serve requests with a cached token."""
    if settings.auth_strategy == "noauth":
        return lambda app: app
    # importing keystonemiddleware takes half a second, and noauth does not need it
    from monasca_common.api import tokens

    assert conf is not None, "authentication needs its configuration"
    own_metrics.will_validate(tokens.ValidationOutcome)

    def layer(app: WsgiApp) -> WsgiApp:
        validated = tokens.authenticated(app, conf, settings.max_in_flight, own_metrics.validated)
        if not settings.trust_scope_header:
            return validated
        return lambda environ, start: (validated if auth.scoped_tenant(environ) is None else app)(environ, start)

    return layer


def _add_routes(app: Any, posts: PostContext, reader: SqlReader | None, alarms_context: AlarmsContext) -> None:
    readable: Any = reader if reader is not None else _NoReader()
    metrics.add_routes(app, posts, readable)
    measurements.add_routes(app, readable)
    alarms.add_routes(app, readable, alarms_context, posts.publishing)
    alarm_definitions.add_routes(app, alarms_context)
    notification_methods.add_routes(app, alarms_context)
    notifications.add_routes(app, alarms_context)
    silences.add_routes(app, alarms_context)
    app.add_route(logs.PATH, logs.Logs(posts))
    app.add_route(events.PATH, events.Events(posts))
    app.add_route(REMOTE_WRITE, prometheus.RemoteWrite(posts))
    try:
        from monasca_common.api.resources import otlp
    except ImportError as error:
        missing = _NotInstalled(remedy(error, "otlp"))
        app.add_route(OTLP_METRICS, missing)
        app.add_route(OTLP_LOGS, missing)
    else:
        otlp.add_routes(app, posts)


class _NotInstalled:
    """Replaces a resource whose extra is not installed."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy

    def on_post(self, _request: falcon.Request, _response: falcon.Response) -> None:
        raise Problem(501, "Not Implemented", f"this API cannot read OTLP: {self._remedy}")


class _Paths:
    """Falcon middleware that refuses NUL characters in paths, because databases cannot search for them."""

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        if "\0" in request.path:
            raise not_found("the path contains a NUL character (%00), which no resource's path contains: correct it")


class _NoReader:
    """Replaces a missing `SqlReader`: each method raises `NotSupported`, after the resource has checked parameters."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_arguments: Any, **_named: Any) -> Any:
            raise NotSupported("this API is configured without a database to read from")

        return refuse


def _closing(_request: Any, _response: Any, _error: Exception, _parameters: Any) -> None:
    raise unavailable(
        "the server is stopping: send the request again",
        retry_after_seconds=RETRY_AFTER_SECONDS,
        reason=Reason.STOPPING,
    )


def _failed(request: Any, _response: Any, error: Exception, _parameters: Any) -> None:
    LOG.error("%s %s failed", request.method, request.uri_template, exc_info=error)
    raise Problem(500, "Internal Server Error", "the request failed; the log of the API contains the reason")


def _refused(_request: Any, _response: Any, error: AlarmsError, _parameters: Any) -> None:
    raise of_alarms(error) from None


def _unreadable(_request: Any, _response: Any, error: StorageError, _parameters: Any) -> None:
    raise of_storage(error) from error
