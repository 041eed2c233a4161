# SPDX-License-Identifier: Apache-2.0
"""``/v2.0/notifications``: sent notifications with their attempts and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import falcon

from monasca_common.alarms.sent_notifications import SentNotification, SentNotifications
from monasca_common.api import paging
from monasca_common.api.alarm_bodies import AlarmsContext, AlarmsResource, self_link
from monasca_common.api.query import Query, iso

PATH = "/v2.0/notifications"


def add_routes(app: falcon.App[Any, Any], context: AlarmsContext) -> None:
    app.add_route(PATH, NotificationsResource(context))
    app.add_route(f"{PATH}/{{notification_id}}", NotificationResource(context))


class NotificationsResource(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = Query.of(request)
        part = query.rows()
        found = _stored(self._context).found(query.notifications(), paging.one_more(part))
        self._context.answer_slice(request, response, found, part, _element)


class NotificationResource(AlarmsResource):
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
