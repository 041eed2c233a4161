# SPDX-License-Identifier: Apache-2.0
"""``/v2.0/alarm-definitions``: the definitions from which alarms are created."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import Any

import falcon
import msgspec

from monasca_common.alarms import definitions
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.api import paging
from monasca_common.api.alarm_bodies import AlarmsContext, AlarmsResource, self_link
from monasca_common.api.query import Query

PATH = "/v2.0/alarm-definitions"


class _Optional(msgspec.Struct, kw_only=True):
    description: str | None = None
    match_by: tuple[str, ...] | None = None
    severity: str | None = None
    actions_enabled: bool | None = None
    alarm_actions: tuple[str, ...] | None = None
    ok_actions: tuple[str, ...] | None = None
    undetermined_actions: tuple[str, ...] | None = None


class ChangedDefinition(_Optional, kw_only=True):
    """The body of PATCH: absent members and nulls change nothing."""

    name: str | None = None
    expression: str | None = None


class NewDefinition(_Optional, kw_only=True):
    """The body of POST: absent members and nulls get default values."""

    name: str
    expression: str


class WholeDefinition(msgspec.Struct):
    """The body of PUT."""

    name: str
    description: str
    expression: str
    match_by: tuple[str, ...]
    severity: str
    actions_enabled: bool
    alarm_actions: tuple[str, ...]
    ok_actions: tuple[str, ...]
    undetermined_actions: tuple[str, ...]


def _with(definition: AlarmDefinition, body: msgspec.Struct) -> AlarmDefinition:
    """Return the definition, changed by the members of ``body`` that are not null."""
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
    if "severity" in given:
        given["severity"] = given["severity"].upper()
    return replace(definition, **given)


def add_routes(app: falcon.App[Any, Any], context: AlarmsContext) -> None:
    app.add_route(PATH, Definitions(context))
    app.add_route(f"{PATH}/{{definition_id}}", Definition(context))


class Definitions(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = Query.of(request)
        which, sorts, part = query.definitions(), query.sorts(definitions.SORTS), query.rows()
        stored = _stored(self._context)
        with contextlib.closing(stored.iter_found(which, sorts, paging.one_more(part))) as found:
            self._context.answer_slice(request, response, found, part, _element)

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        body = self._context.document(request, NewDefinition)
        definition = _with(AlarmDefinition(body.name, body.expression), body)
        created = _stored(self._context).create(request.context.tenant, definition, self._context.now_ms())
        response.status = falcon.HTTP_201
        paging.answer(response, _element(request, created))


class Definition(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response, definition_id: str) -> None:
        paging.answer(response, _element(request, _stored(self._context).get(request.context.tenant, definition_id)))

    def on_put(self, request: falcon.Request, response: falcon.Response, definition_id: str) -> None:
        self._change(request, response, definition_id, self._context.document(request, WholeDefinition))

    def on_patch(self, request: falcon.Request, response: falcon.Response, definition_id: str) -> None:
        self._change(request, response, definition_id, self._context.document(request, ChangedDefinition))

    def on_delete(self, request: falcon.Request, response: falcon.Response, definition_id: str) -> None:
        _stored(self._context).delete(request.context.tenant, definition_id)
        response.status = falcon.HTTP_204

    def _change(
        self, request: falcon.Request, response: falcon.Response, definition_id: str, body: msgspec.Struct
    ) -> None:
        changed = _stored(self._context).change(
            request.context.tenant, definition_id, lambda before: _with(before, body), self._context.now_ms()
        )
        paging.answer(response, _element(request, changed))


def _stored(context: AlarmsContext) -> AlarmDefinitions:
    return AlarmDefinitions(context.needed_database())


def _element(request: falcon.Request, definition: AlarmDefinition) -> dict[str, Any]:
    return {**asdict(definition), "links": [self_link(request, PATH, definition.id)]}
