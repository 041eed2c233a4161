# SPDX-License-Identifier: Apache-2.0
"""``/v2.0/alarms``: alarms, their counts, and the history of their states."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import falcon
import msgspec

from monasca_common.alarms import outbox
from monasca_common.alarms.alarm_queries import GROUPS, SORTS
from monasca_common.alarms.alarm_tables import Alarms, StoredAlarm
from monasca_common.alarms.database import AlarmsDatabase, Slice
from monasca_common.api import paging
from monasca_common.api.alarm_bodies import AlarmsContext, AlarmsResource, self_link
from monasca_common.api.problems import Problem
from monasca_common.api.publishing import Publishing, TopicMessages
from monasca_common.api.query import Query, iso
from monasca_common.api.resources.alarm_definitions import PATH as DEFINITIONS
from monasca_common.kafka import Record
from monasca_common.kafka.errors import MessagingError, RegistryUnavailable
from monasca_common.storage.errors import StorageError
from monasca_common.storage.reader import StoredTransition
from monasca_common.storage.sql.reader import SqlReader

LOG = logging.getLogger(__name__)

PATH = "/v2.0/alarms"
_MAX_PUBLISHED = 10  # maximum number of outbox messages that a request publishes
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


class WholeAlarm(msgspec.Struct):
    """The body of PUT. All members are required; the last two may be null."""

    state: str
    lifecycle_state: str | None
    link: str | None

    def of(self, alarm: StoredAlarm) -> StoredAlarm:
        return replace(alarm, **msgspec.structs.asdict(self))


class ChangedAlarm(msgspec.Struct):
    """The body of PATCH: absent members and nulls change nothing."""

    state: str | None = None
    lifecycle_state: str | None = None
    link: str | None = None

    def of(self, alarm: StoredAlarm) -> StoredAlarm:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return replace(alarm, **given)


def add_routes(app: falcon.App[Any, Any], reader: SqlReader, context: AlarmsContext, publishing: Publishing) -> None:
    history = AlarmHistory(reader)
    for path in (f"{PATH}/state-history", f"{PATH}/state-history/", f"{PATH}/{{alarm_id}}/state-history"):
        app.add_route(path, history)
    app.add_route(f"{PATH}/count", AlarmsCount(context))
    app.add_route(PATH, AlarmsList(context))
    app.add_route(f"{PATH}/{{alarm_id}}", Alarm(context, publishing))


class AlarmsList(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = Query.of(request)
        which, sorts, part = query.alarms(), query.sorts(SORTS), query.rows()
        alarms = Alarms(self._context.needed_database())
        with contextlib.closing(alarms.iter_found(which, sorts, paging.one_more(part))) as found:
            self._context.answer_slice(request, response, found, part, _shown)


class Alarm:
    def __init__(self, context: AlarmsContext, publishing: Publishing) -> None:
        self._context = context
        self._publishing = publishing

    def on_get(self, request: falcon.Request, response: falcon.Response, alarm_id: str) -> None:
        alarm = Alarms(self._context.needed_database()).get(request.context.tenant, alarm_id)
        paging.answer(response, _shown(request, alarm))

    def on_put(self, request: falcon.Request, response: falcon.Response, alarm_id: str) -> None:
        self._change(request, response, alarm_id, self._context.document(request, WholeAlarm).of)

    def on_patch(self, request: falcon.Request, response: falcon.Response, alarm_id: str) -> None:
        self._change(request, response, alarm_id, self._context.document(request, ChangedAlarm).of)

    def on_delete(self, request: falcon.Request, response: falcon.Response, alarm_id: str) -> None:
        Alarms(self._context.needed_database()).delete(request.context.tenant, alarm_id)
        response.status = falcon.HTTP_204

    def _change(
        self,
        request: falcon.Request,
        response: falcon.Response,
        alarm_id: str,
        changed: Callable[[StoredAlarm], StoredAlarm],
    ) -> None:
        database, now_ms = self._context.needed_database(), self._context.now_ms()
        alarm, is_transition = Alarms(database).change(request.context.tenant, alarm_id, changed, now_ms)
        if is_transition:
            self._publish(database, alarm_id)
        paging.answer(response, _shown(request, alarm))

    def _publish(self, database: AlarmsDatabase, alarm_id: str) -> None:
        """Publish the alarm's messages from the outbox, one after the other. The change is already committed, so a
        failure is only logged; the messages stay in the outbox, and the evaluator publishes them or counts them as
        lost."""
        topic, writer = self._context.settings.alarm_transitions_topic, self._context.transitions
        next_message = partial(outbox.waiting, limit=1, alarm_id=alarm_id)
        try:
            for _ in range(_MAX_PUBLISHED):
                pending = database.read(next_message)
                if not pending:
                    return
                value = pending[0].value if writer is None else writer.values([pending[0].value])[0]
                record = Record(value, key=alarm_id.encode(), message_id=pending[0].message_id)
                [report] = self._publishing.attempt(TopicMessages(topic, [record]), keyed=True)
                report.raise_for_undelivered()
                database.write(partial(outbox.clear, rows=pending))
        except (Problem, StorageError, MessagingError, RegistryUnavailable) as error:
            reason = error.description if isinstance(error, Problem) else error
            LOG.warning("an alarm transition stays in the outbox: %s", reason)


class AlarmsCount(AlarmsResource):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query, alarms = Query.of(request), Alarms(self._context.needed_database())
        which, group_by, part = query.alarms(), query.groups(GROUPS), query.rows()
        following = None
        if group_by:
            counts = alarms.counts(which, group_by, paging.one_more(part))
            if len(counts) > part.limit:
                following = str(part.offset + part.limit)
            counts = counts[: part.limit] or [[0, *[None] * len(group_by)]]
        else:
            counts = alarms.counts(which, (), Slice(1))
        links = paging.links(request, following)
        paging.answer(response, {"links": links, "columns": ["count", *group_by], "counts": counts})


class AlarmHistory:
    def __init__(self, reader: SqlReader) -> None:
        self._reader = reader

    def on_get(self, request: falcon.Request, response: falcon.Response, alarm_id: str | None = None) -> None:
        query = Query.of(request)
        which, page = query.alarm_history(alarm_id)
        with contextlib.closing(self._reader.iter_alarm_history(which, paging.one_more(page))) as found:
            paging.answer_page(request, response, found, limit=page.limit, element=_element, offset=attrgetter("id"))


def _shown(request: falcon.Request, alarm: StoredAlarm) -> dict[str, Any]:
    own = self_link(request, PATH, alarm.id)
    return {
        "id": alarm.id,
        "links": [own, {"rel": "state-history", "href": f"{own['href']}/state-history"}],
        "alarm_definition": {
            "id": alarm.definition_id,
            "name": alarm.definition_name,
            "severity": alarm.severity,
            "links": [self_link(request, DEFINITIONS, alarm.definition_id)],
        },
        "metrics": [{"name": each.name, "dimensions": each.dimensions} for each in alarm.metrics],
        "state": alarm.state,
        "lifecycle_state": alarm.lifecycle_state,
        "link": alarm.link,
        "state_updated_timestamp": iso(alarm.state_updated),
        "updated_timestamp": iso(alarm.updated),
        "created_timestamp": iso(alarm.created),
    }


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
    """Add an id to each metric; in the public API, this id is always null."""
    if not isinstance(stored, list):
        return stored
    return [{**each, "id": None} if isinstance(each, dict) and "name" in each else each for each in stored]


def _sub_alarms(stored: Any) -> Any:
    """Convert the sub-alarms of a message (subAlarmExpression) to the form of the public API: sub_alarm_expression,
    whose members include the metric's name and dimensions. Other values are returned unchanged."""
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
