# SPDX-License-Identifier: Apache-2.0
"""``/v2.0/silences``: periods in which notifications are suppressed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import falcon
import msgspec

from monasca_common.alarms.errors import BrokenRules
from monasca_common.alarms.silences import Silence, Silences
from monasca_common.api import paging
from monasca_common.api.alarm_bodies import AlarmsContext, AlarmsResource, self_link
from monasca_common.api.query import Query, iso
from monasca_common.models import times
from monasca_common.models.errors import Violation

PATH = "/v2.0/silences"


class NewSilence(msgspec.Struct):
    """The body of POST. Times are in ISO 8601, or in milliseconds since the epoch."""

    dimensions: dict[str, str]
    until: str | int | float
    author: str
    begin: str | int | float | None = msgspec.field(name="from", default=None)
    comment: str = ""

    def silence(self, tenant: str, now_ms: int) -> Silence:
        """Return the silence. Raises `BrokenRules`."""
        begin_ms = now_ms if self.begin is None else _time("from", self.begin)
        until_ms = _time("until", self.until)
        return Silence(tenant, self.dimensions, begin_ms, until_ms, self.author, self.comment)


def _time(place: str, given: str | float) -> int:
    try:
        return times.from_ms_or_iso(given)
    except ValueError as error:
        raise BrokenRules([Violation(place, str(error))]) from None


def add_routes(app: falcon.App[Any, Any], context: AlarmsContext) -> None:
    app.add_route(PATH, SilencesResource(context))
    app.add_route(f"{PATH}/{{silence_id}}", SilenceResource(context))


class SilencesResource(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = Query.of(request)
        part = query.rows()
        at_ms = self._context.now_ms() if query.flag("lasting") else None
        found = _stored(self._context).found(request.context.tenant, paging.one_more(part), lasting_at_ms=at_ms)
        self._context.answer_slice(request, response, found, part, _element)

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        body, now_ms = self._context.document(request, NewSilence), self._context.now_ms()
        created = _stored(self._context).create(body.silence(request.context.tenant, now_ms), now_ms)
        response.status = falcon.HTTP_201
        paging.answer(response, _element(request, created))


class SilenceResource(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response, silence_id: str) -> None:
        paging.answer(response, _element(request, _stored(self._context).get(request.context.tenant, silence_id)))

    def on_delete(self, request: falcon.Request, response: falcon.Response, silence_id: str) -> None:
        _stored(self._context).delete(request.context.tenant, silence_id)
        response.status = falcon.HTTP_204


def _stored(context: AlarmsContext) -> Silences:
    return Silences(context.needed_database())


def _element(request: falcon.Request, silence: Silence) -> Mapping[str, Any]:
    return {
        "id": silence.id,
        "links": [self_link(request, PATH, silence.id)],
        "dimensions": silence.dimensions,
        "from": iso(silence.from_ms),
        "until": iso(silence.until_ms),
        "author": silence.author,
        "comment": silence.comment,
        "created_timestamp": iso(silence.created_ms),
    }
