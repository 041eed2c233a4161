# SPDX-License-Identifier: Apache-2.0
"""The routes of everything that is read."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import falcon

from monasca_common.api import alarm_reads, metric_lists, metric_rows
from monasca_common.api.problems import Problem, unavailable, unprocessable
from monasca_common.storage.errors import (
    NotSupported,
    QueryTimeout,
    QueryTooLarge,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)
from monasca_common.storage.reader import Reader

LOG = logging.getLogger(__name__)
_RETRY_AFTER_SECONDS = 5


class PageSettings(Protocol):
    """What reads need of the API's settings."""

    @property
    def page_limit(self) -> int: ...


def add_read_routes(app: falcon.App[Any, Any], reader: Reader, settings: PageSettings) -> None:
    """All but ``/v2.0/metrics``, which posts share: see `metric_lists.Metrics`.

    Requests must arrive with ``req.context.tenant``. The reader stays its opener's to close.
    """
    limit = settings.page_limit
    app.add_route("/v2.0/metrics/names", metric_lists.MetricNames(reader, limit))
    app.add_route("/v2.0/metrics/dimensions/names", metric_lists.DimensionNames(reader, limit))
    app.add_route("/v2.0/metrics/dimensions/names/values", metric_lists.DimensionValues(reader, limit))
    app.add_route("/v2.0/metrics/measurements", metric_rows.Measurements(reader, limit))
    app.add_route("/v2.0/metrics/statistics", metric_rows.Statistics(reader, limit))
    history = alarm_reads.AlarmHistory(reader, limit)
    for path in ("/v2.0/alarms/state-history", "/v2.0/alarms/state-history/", "/v2.0/alarms/{alarm_id}/state-history"):
        app.add_route(path, history)
    app.add_route("/v2.0/alarms/count", alarm_reads.NoAlarms())
    for name in ("alarm-definitions", "alarms", "notification-methods"):
        app.add_route(f"/v2.0/{name}", alarm_reads.NothingYet())
    app.add_error_handler(StorageError, _say)


def _say(_request: falcon.Request, _response: falcon.Response, error: StorageError, _params: dict[str, Any]) -> None:
    raise problem_of(error) from error


def problem_of(error: StorageError) -> Problem:
    """503 for what may pass, 422 for what was asked too widely."""
    match error:
        case StorageUnavailable() | SchemaMismatch():
            LOG.warning("A read failed: %s", error)
            return unavailable("the database cannot answer now", retry_after_seconds=_RETRY_AFTER_SECONDS)
        case QueryTimeout():
            return unavailable(str(error), retry_after_seconds=_RETRY_AFTER_SECONDS)
        case QueryTooLarge():
            return unprocessable(str(error))
        case NotSupported():
            return Problem(501, "Not Implemented", "what is stored here cannot be read back through this API")
    LOG.error("A read failed", exc_info=error)
    return Problem(500, "Internal Server Error", "the read failed; the log of the API says why")
