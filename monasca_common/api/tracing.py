# SPDX-License-Identifier: Apache-2.0
"""The span of a request, which continues the trace in the header ``traceparent``."""

from collections.abc import Iterable
from typing import Any

import falcon
from opentelemetry.context import get_current
from opentelemetry.trace import SpanKind, StatusCode

from monasca_common.api.access import OTHER, Routes
from monasca_common.api.limits import Environ, StartResponse, WsgiApp
from monasca_common.kafka import tracing


def traced(app: WsgiApp, templates: Iterable[str]) -> WsgiApp:
    """Return ``app`` with a span for each request: a child of the current span, otherwise of the header's span."""
    routes = Routes(templates)

    def call(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        def started(line: str, *more: Any) -> Any:
            span.set_attribute("http.response.status_code", int(line[:3]))
            if line.startswith("5"):
                span.set_status(StatusCode.ERROR)
            return start_response(line, *more)

        carrier = {name: environ.get(f"HTTP_{name.upper()}", "") for name in ("traceparent", "tracestate")}
        context = get_current() or tracing.PROPAGATOR.extract(carrier)
        route, method = routes.find(environ.get("PATH_INFO", "")), environ["REQUEST_METHOD"]
        method = method if method in falcon.HTTP_METHODS else OTHER
        facts = {"http.request.method": method, "http.route": route}
        with tracing.current_span(f"{method} {route}", context, SpanKind.SERVER, facts) as span:
            return app(environ, started)

    return call
