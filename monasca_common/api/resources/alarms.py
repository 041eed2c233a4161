# SPDX-License-Identifier: Apache-2.0
"""``GET`` of alarms: the history that is stored, and empty lists of what nothing is behind yet."""

from __future__ import annotations

import contextlib
import re
from operator import attrgetter
from typing import Any

import falcon

from monasca_common.api import paging
from monasca_common.api.openapi import GROUP_BY, OBJECT, SELECTION, STRING, TIME, list_of, of, operation
from monasca_common.api.paging import one_more
from monasca_common.api.query import Query, iso
from monasca_common.api.settings import ApiSettings
from monasca_common.storage.reader import Reader, StoredTransition

_ARRAY = {"type": "array"}
_TRANSITION = of(
    id=STRING, alarm_id=STRING, metrics=_ARRAY, old_state=STRING, new_state=STRING, timestamp=TIME, sub_alarms=_ARRAY
)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def add_routes(app: falcon.App[Any, Any], reader: Reader, settings: ApiSettings) -> None:
    history = AlarmHistory(reader, settings)
    for path in ("/v2.0/alarms/state-history", "/v2.0/alarms/state-history/", "/v2.0/alarms/{alarm_id}/state-history"):
        app.add_route(path, history)
    app.add_route("/v2.0/alarms/count", NoAlarms())
    app.add_route("/v2.0/alarms", NothingYet())


class AlarmHistory:
    def __init__(self, reader: Reader, settings: ApiSettings) -> None:
        self._reader = reader
        self._page_limit = settings.page_limit
        self._max_bytes = settings.max_answer_bytes

    @operation("Transitions of alarms", *SELECTION, returns=list_of(_TRANSITION))
    def on_get(self, request: falcon.Request, response: falcon.Response, alarm_id: str | None = None) -> None:
        query = Query(request.query_string, tenant=request.context.tenant, page_limit=self._page_limit)
        which, page = query.alarm_history(alarm_id)
        with contextlib.closing(self._reader.iter_alarm_history(which, one_more(page))) as found:
            paging.answer_page(
                request,
                response,
                found,
                limit=page.limit,
                max_bytes=self._max_bytes,
                element=_element,
                offset=attrgetter("id"),
            )


class NothingYet:
    """Clients ask for these lists before anything else; an error would stop them."""

    @operation("Nothing yet", returns=list_of(OBJECT))
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        paging.answer_elements(request, response, [])


class NoAlarms:
    @operation("How many alarms there are: none yet", GROUP_BY, returns=of(links=_ARRAY, columns=_ARRAY, counts=_ARRAY))
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        columns = Query(request.query_string, tenant=request.context.tenant, page_limit=1).count_columns()
        counts = [[0, *[None] * (len(columns) - 1)]]
        paging.answer(response, {"links": paging.links(request), "columns": columns, "counts": counts})


def _element(transition: StoredTransition) -> dict[str, Any]:
    return {
        "id": transition.id,
        "alarm_id": transition.alarm_id,
        "metrics": _metrics(transition.metrics),
        "old_state": transition.old_state,
        "new_state": transition.new_state,
        "reason": transition.reason,
        "reason_data": "{}",
        "timestamp": iso(transition.time_ms),
        "sub_alarms": _sub_alarms(transition.sub_alarms),
    }


def _metrics(stored: Any) -> Any:
    """With the id that the API has always shown, and that has always been null."""
    if not isinstance(stored, list):
        return stored
    return [{**each, "id": None} if isinstance(each, dict) and "name" in each else each for each in stored]


def _sub_alarms(stored: Any) -> Any:
    """On the wire the threshold engine writes subAlarmExpression; the API has always said sub_alarm_expression, and
    has shown the metric's name and dimensions as members of it.

    What has another form is shown as it is.
    """
    if not isinstance(stored, list):
        return stored
    shown = [_snake(each) for each in stored]
    for each in shown:
        if isinstance(each, dict) and "sub_alarm_expression" in each:
            each["sub_alarm_expression"] = _flat(_snake(each["sub_alarm_expression"]))
    return shown


def _flat(expression: Any) -> Any:
    if not isinstance(expression, dict) or not isinstance(expression.get("metric_definition"), dict):
        return expression
    metric = expression["metric_definition"]
    flat = {"metric_name": metric.get("name", ""), "dimensions": metric.get("dimensions", {})}
    return {**{key: value for key, value in expression.items() if key != "metric_definition"}, **flat}


def _snake(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    return {_HUMP.sub("_", key).lower(): value for key, value in document.items()}
