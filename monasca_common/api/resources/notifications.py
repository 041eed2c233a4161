# SPDX-License-Identifier: Apache-2.0
"""``/v2.0/notifications``: what was sent to whom, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import falcon

from monasca_common.alarms import sent_notifications
from monasca_common.alarms.sent_notifications import SENT_STATES, SentNotification, SentNotifications
from monasca_common.api import paging
from monasca_common.api.documents import AlarmsContext, one_row_more, self_link
from monasca_common.api.openapi import (
    ARRAY,
    INTEGER,
    LIMIT,
    OBJECT,
    ROW_OFFSET,
    STRING,
    TIME,
    TIMES,
    Parameter,
    list_of,
    of,
    operation,
    sort_by,
)
from monasca_common.api.query import iso

PATH = "/v2.0/notifications"
_TEXT_OR_NULL = {"type": ["string", "null"]}
_NOTIFICATION = of(
    id=STRING,
    links=ARRAY,
    alarm_id=STRING,
    alarm_definition_id=_TEXT_OR_NULL,
    notification_method=OBJECT,
    new_state=STRING,
    alarm_timestamp=TIME,
    state=STRING,
    attempts=INTEGER,
    repeats=INTEGER,
    answer=_TEXT_OR_NULL,
    failures=ARRAY,
    created_timestamp=TIME,
    updated_timestamp=TIME,
)
_ALARM = Parameter("alarm_id", "Of this alarm", STRING)
_DEFINITION = Parameter("alarm_definition_id", "Of alarms of this definition", STRING)
_METHOD = Parameter("notification_method_id", "By this method", STRING)
_STATE = Parameter("state", f"One of {', '.join(SENT_STATES)}; several separated by |", STRING)


def add_routes(app: falcon.App[Any, Any], context: AlarmsContext) -> None:
    app.add_route(PATH, NotificationsResource(context))
    app.add_route(f"{PATH}/{{notification_id}}", NotificationResource(context))


class NotificationsResource:
    def __init__(self, context: AlarmsContext) -> None:
        self._context = context

    @operation(
        "What was sent to whom, the newest first",
        *(_ALARM, _DEFINITION, _METHOD, _STATE, *TIMES),
        *(sort_by(sent_notifications.SORTS), LIMIT, ROW_OFFSET),
        returns=list_of(_NOTIFICATION),
    )
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = self._context.query(request)
        sorts, part = query.sorts(sent_notifications.SORTS), query.rows()
        found = _stored(self._context).found(query.notifications(), sorts, one_row_more(part))
        self._context.answer_slice(request, response, found, part, lambda each: _element(request, each))


class NotificationResource:
    def __init__(self, context: AlarmsContext) -> None:
        self._context = context

    @operation("One notification", returns=_NOTIFICATION)
    def on_get(self, request: falcon.Request, response: falcon.Response, notification_id: str) -> None:
        found = _stored(self._context).get(request.context.tenant, notification_id)
        paging.answer(response, _element(request, found))


def _stored(context: AlarmsContext) -> SentNotifications:
    return SentNotifications(context.needed_database(), context.keys)


def _element(request: falcon.Request, sent: SentNotification) -> Mapping[str, Any]:
    return {
        "id": sent.id,
        "links": [self_link(request, PATH, sent.id)],
        "alarm_id": sent.alarm_id,
        "alarm_definition_id": sent.definition_id,
        "notification_method": {
            "id": sent.method_id,
            "name": sent.method_name,
            "type": sent.method_type,
            "address": sent.masked_address,
        },
        "new_state": sent.new_state,
        "alarm_timestamp": iso(sent.alarm_ms),
        "state": sent.state,
        "attempts": sent.attempts,
        "repeats": sent.repeats,
        "answer": sent.answer,
        "failures": [{"timestamp": iso(each.timestamp), "answer": each.answer} for each in sent.failures],
        "created_timestamp": iso(sent.created_ms),
        "updated_timestamp": iso(sent.updated_ms),
    }
