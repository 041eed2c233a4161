# SPDX-License-Identifier: Apache-2.0
"""``GET`` of alarms: the history that is stored, and empty lists of what nothing is behind yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import falcon

from monasca_common.api import paging
from monasca_common.api.metric_lists import one_more
from monasca_common.api.query import Query, iso
from monasca_common.storage.reader import Reader, StoredTransition

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


class AlarmHistory:
    def __init__(self, reader: Reader, page_limit: int) -> None:
        self._reader = reader
        self._page_limit = page_limit

    def on_get(self, request: falcon.Request, response: falcon.Response, alarm_id: str | None = None) -> None:
        query = Query(request.query_string, tenant=request.context.tenant, page_limit=self._page_limit)
        which, page = query.alarm_history(alarm_id)
        transitions = self._reader.alarm_history(which, one_more(page))
        shown = transitions[: page.limit]
        more = len(transitions) > page.limit
        paging.answer_page(request, response, [_element(one) for one in shown], shown[-1].id if more else None)


class NothingYet:
    """Clients ask for these lists before anything else; an error would stop them."""

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        paging.answer_page(request, response, [])


class NoAlarms:
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        columns = Query(request.query_string, tenant=request.context.tenant, page_limit=1).count_columns()
        counts = [[0, *[None] * (len(columns) - 1)]]
        paging.answer(response, {"links": paging.links(request), "columns": columns, "counts": counts})


def _element(transition: StoredTransition) -> dict[str, Any]:
    return {
        "id": transition.id,
        "alarm_id": transition.alarm_id,
        "metrics": transition.metrics,
        "old_state": transition.old_state,
        "new_state": transition.new_state,
        "reason": transition.reason,
        "reason_data": "{}",
        "timestamp": iso(transition.time_ms),
        "sub_alarms": [_sub_alarm(one) for one in transition.sub_alarms],
    }


def _sub_alarm(stored: Mapping[str, Any]) -> dict[str, Any]:
    """On the wire the threshold engine writes subAlarmExpression; the API has always said sub_alarm_expression."""
    shown = _snake(stored)
    expression = shown.get("sub_alarm_expression")
    if isinstance(expression, Mapping):
        shown["sub_alarm_expression"] = _snake(expression)
    return shown


def _snake(document: Mapping[str, Any]) -> dict[str, Any]:
    return {_HUMP.sub("_", key).lower(): value for key, value in document.items()}
