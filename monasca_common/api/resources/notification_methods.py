# SPDX-License-Identifier: Apache-2.0
"""``/v2.0/notification-methods``: the receivers of notifications."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import falcon
import msgspec

from monasca_common.alarms import notification_methods as methods
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.api import paging
from monasca_common.api.alarm_bodies import AlarmsContext, AlarmsResource, self_link
from monasca_common.api.query import Query

PATH = "/v2.0/notification-methods"


class NewMethod(msgspec.Struct):
    """The body of POST and of PUT."""

    name: str
    type: str
    address: str
    period: int = 0

    def method(self) -> NotificationMethod:
        return NotificationMethod(self.name, self.type.upper(), self.address, self.period)


class ChangedMethod(msgspec.Struct):
    """The body of PATCH: absent members and nulls change nothing."""

    name: str | None = None
    type: str | None = None
    address: str | None = None
    period: int | None = None

    def of(self, method: NotificationMethod) -> NotificationMethod:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.type is not None:
            given["type"] = self.type.upper()
        return replace(method, **given)


def add_routes(app: falcon.App[Any, Any], context: AlarmsContext) -> None:
    app.add_route(PATH, Methods(context))
    app.add_route(f"{PATH}/types", MethodTypes())
    app.add_route(f"{PATH}/{{method_id}}", Method(context))


class Methods(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = Query.of(request)
        sorts, part = query.sorts(methods.SORTS), query.rows()
        found = _stored(self._context).found(request.context.tenant, sorts, paging.one_more(part))
        self._context.answer_slice(request, response, found, part, _element)

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        body = self._context.document(request, NewMethod)
        created = _stored(self._context).create(request.context.tenant, body.method(), self._context.now_ms())
        response.status = falcon.HTTP_201
        paging.answer(response, _element(request, created))


class MethodTypes:
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        paging.answer_elements(request, response, [paging.encode({"type": name}) for name in methods.types()])


class Method(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response, method_id: str) -> None:
        paging.answer(response, _element(request, _stored(self._context).get(request.context.tenant, method_id)))

    def on_put(self, request: falcon.Request, response: falcon.Response, method_id: str) -> None:
        method = self._context.document(request, NewMethod).method()
        self._change(request, response, method_id, lambda _: replace(method, id=method_id))

    def on_patch(self, request: falcon.Request, response: falcon.Response, method_id: str) -> None:
        self._change(request, response, method_id, self._context.document(request, ChangedMethod).of)

    def on_delete(self, request: falcon.Request, response: falcon.Response, method_id: str) -> None:
        _stored(self._context).delete(request.context.tenant, method_id)
        response.status = falcon.HTTP_204

    def _change(
        self,
        request: falcon.Request,
        response: falcon.Response,
        method_id: str,
        change: Callable[[NotificationMethod], NotificationMethod],
    ) -> None:
        changed = _stored(self._context).change(request.context.tenant, method_id, change, self._context.now_ms())
        paging.answer(response, _element(request, changed))


def _stored(context: AlarmsContext) -> NotificationMethods:
    return NotificationMethods(context.needed_database(), context.keys)


def _element(request: falcon.Request, method: NotificationMethod) -> dict[str, Any]:
    return {
        "id": method.id,
        "links": [self_link(request, PATH, method.id)],
        "name": method.name,
        "type": method.type,
        "address": method.address,
        "period": method.period,
    }
