# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: what is where, and what a request passes on its way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import falcon
from oslo_config import cfg

from monasca_common.api import auth, health, metric_lists
from monasca_common.api.limits import RETRY_AFTER_SECONDS, InFlightLimit, WsgiApp
from monasca_common.api.options import ApiSettings
from monasca_common.api.posts import EVENTS_PATH, LOGS_PATH, Desk, Events, Logs, Metrics
from monasca_common.api.problems import serialize_error, unavailable
from monasca_common.api.publishing import Publishing
from monasca_common.api.reads import add_read_routes
from monasca_common.api.series_limit import SeriesLimit
from monasca_common.api.versions import Version, Versions
from monasca_common.kafka import ClosedError, KafkaProducer
from monasca_common.storage.errors import NotSupported
from monasca_common.storage.reader import Reader


def make_app(
    settings: ApiSettings,
    producer: KafkaProducer,
    reader: Reader | None = None,
    *,
    conf: cfg.ConfigOpts | None = None,
    probe: Callable[[], None] | None = None,
) -> WsgiApp:
    """The application over an open producer (and reader, without which reads are answered 501); it closes neither.

    ``conf``: where [keystone_authtoken] and [oslo_policy] are, needed unless ``auth_strategy`` is noauth.
    ``probe``: see `health.producer_check`.
    """
    middleware: Any
    if settings.auth_strategy == "noauth":
        middleware = auth.NoAuthentication(settings)
    else:
        assert conf is not None, "authentication needs its configuration"
        middleware = auth.Authorization(conf)
    app: Any = falcon.App(middleware=[middleware])
    app.req_options.strip_url_path_trailing_slash = True
    app.set_error_serializer(serialize_error)
    app.add_error_handler(ClosedError, _closing)
    checks = {
        "producer": health.producer_check(producer, settings, probe),
        "storage": health.storage_check(reader),
    }
    app.add_route("/", Versions())
    app.add_route("/v2.0", Version())
    app.add_route("/healthcheck", health.Health(checks))
    _add_routes(app, settings, producer, reader)
    app = app if settings.auth_strategy == "noauth" or conf is None else auth.authenticated(app, conf)
    return InFlightLimit(app, settings.max_in_flight)


def _add_routes(app: Any, settings: ApiSettings, producer: KafkaProducer, reader: Reader | None) -> None:
    limit = settings.max_series_per_tenant
    desk = Desk(
        settings,
        Publishing(producer, settings),
        SeriesLimit(limit, settings.region, reader) if limit else None,
    )
    readable: Any = reader if reader is not None else _NoReader()
    app.add_route("/v2.0/metrics", _Metrics(Metrics(desk), metric_lists.Metrics(readable, settings.page_limit)))
    add_read_routes(app, readable, settings)
    app.add_route(LOGS_PATH, Logs(desk))
    app.add_route(EVENTS_PATH, Events(desk))


class _Metrics:
    """One path, where metrics are posted and listed."""

    def __init__(self, posts: Metrics, lists: metric_lists.Metrics) -> None:
        self.on_post = posts.on_post
        self.on_get = lists.on_get


class _NoReader:
    """Stands in for a `Reader` where nothing can be read: parameters are checked, then it says so."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_arguments: Any, **_named: Any) -> Any:
            raise NotSupported("this API is configured without a database to read from")

        return refuse


def _closing(_request: Any, _response: Any, _error: Exception, _parameters: Any) -> None:
    raise unavailable("the server is stopping: send the request again", retry_after_seconds=RETRY_AFTER_SECONDS)
