# SPDX-License-Identifier: Apache-2.0
"""Writes the states and outbox rows of a page of alarms, and publishes the outbox.

If a state is set by hand while the alarm is evaluated, the alarm keeps that state and its transitions are dropped.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from monasca_common.alarms import outbox
from monasca_common.alarms.database import Row, Select
from monasca_common.alarms.definitions import StoredSubExpression
from monasca_common.alarms.evaluation import AlarmState, Evaluated, Measured, SubAlarm, Transition
from monasca_common.alarms.outbox import Unpublished
from monasca_common.alarms.partials import readings_text
from monasca_common.alarms.transitions import MOST_METRICS, AlarmChange, AlarmedMetric
from monasca_common.kafka import KafkaProducer, Record, portions
from monasca_common.kafka.errors import MessageTooLarge, RegistryUnavailable, SchemaRefused
from monasca_common.kafka.failpoints import fail_point
from monasca_common.models import json_text
from monasca_common.pipeline.evaluate.definitions import LoadedDefinition, among
from monasca_common.pipeline.evaluate.gauges import EVALUATE, lost_transitions
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.spark.worker_producer import usable
from monasca_common.runtime.envelopes import EnvelopeWriter
from monasca_common.storage.sql import tables

LOG = logging.getLogger(__name__)

_MOST_AT_ONCE = 500
_ALARM, _SUB_ALARM, _METRIC = tables.alarm, tables.sub_alarm, tables.alarm_metric


@dataclass(frozen=True, slots=True)
class LoadedAlarm:
    """An alarm, with all data that determines its state. ``row``: its row. ``stored``: the rows of its sub-alarms, by
    sub-expression."""

    row: Row
    definition: LoadedDefinition
    stored: Mapping[str, Row]
    state: AlarmState
    measured: tuple[Measured, ...]


@dataclass(frozen=True, slots=True)
class EvaluatedAlarm:
    alarm: LoadedAlarm
    evaluated: Evaluated


def write(connection: sa.Connection, outcomes: Sequence[EvaluatedAlarm], now_ms: int) -> int:
    """Write the changes in the transaction of the page. Return the number of transitions."""
    _write_sub_alarms(connection, outcomes)
    changed = _unchanged_by_hand(connection, [each for each in outcomes if each.evaluated.transitions])
    if not changed:
        return 0
    _write_alarms(connection, changed, now_ms)
    changes = _changes(connection, changed)
    outbox.put(connection, changes)
    return len(changes)


def _write_sub_alarms(connection: sa.Connection, outcomes: Sequence[EvaluatedAlarm]) -> None:
    updated: list[dict[str, Any]] = []
    for each in outcomes:
        alarm = each.alarm
        is_alone = len(alarm.state.sub_alarms) == 1
        for sub, before, now in zip(
            alarm.definition.sub_expressions, alarm.state.sub_alarms, each.evaluated.alarm.sub_alarms, strict=True
        ):
            if alarm.stored[sub.id].windows != sub.windows or _has_changed(before, now, is_alone=is_alone):
                updated.append(_sub_row(alarm.row.id, sub, now))
    if updated:
        _update(connection, _SUB_ALARM, ("alarm_id", "sub_expression_id"), updated)


def _has_changed(before: SubAlarm, now: SubAlarm, *, is_alone: bool) -> bool:
    """Return whether the sub-alarm must be written. A sub-alarm is not written if only its values changed and the alarm
    has no other sub-alarm, because each evaluation recomputes the values before they appear in a message. A crossing
    changes more than the values."""
    return _decided(before) != _decided(now) or (not is_alone and before.current_values != now.current_values)


def _decided(sub_alarm: SubAlarm) -> tuple[object, ...]:
    return sub_alarm.state, sub_alarm.empty_evaluations, sub_alarm.decided_ms, sub_alarm.newest


def _update(connection: sa.Connection, table: sa.Table, key: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Set the other columns of the rows with these keys. On PostgreSQL this is one statement, because a statement for
    each row takes longer than all other statements of the page."""
    others = [name for name in rows[0] if name not in key]
    if connection.dialect.name == "postgresql":
        kinds = (sa.column(name, table.c[name].type) for name in rows[0])
        text = sa.literal(json_text.write(rows).decode(), sa.Text())
        given = sa.func.jsonb_to_recordset(sa.cast(text, postgresql.JSONB)).table_valued(*kinds, name="given")
        given = given.render_derived(with_types=True)
        values = {name: given.c[name] for name in others}
        connection.execute(table.update().values(values).where(*(table.c[name] == given.c[name] for name in key)))
    else:
        given_rows = [{f"new_{name}": value for name, value in row.items()} for row in rows]
        bound: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in others}
        which = (table.c[name] == sa.bindparam(f"new_{name}") for name in key)
        connection.execute(table.update().where(*which).values(bound), given_rows)


def _sub_row(alarm_id: str, sub: StoredSubExpression, sub_alarm: SubAlarm) -> dict[str, Any]:
    return {
        "alarm_id": alarm_id,
        "sub_expression_id": sub.id,
        "state": sub_alarm.state,
        "current_values": list(sub_alarm.current_values),
        "windows": sub.windows,
        "empty_evaluations": sub_alarm.empty_evaluations,
        "decided": sub_alarm.decided_ms,
        "newest": None if sub_alarm.newest is None else readings_text([sub_alarm.newest]),
    }


def _unchanged_by_hand(
    connection: sa.Connection, outcomes: Sequence[EvaluatedAlarm]
) -> list[tuple[EvaluatedAlarm, Row]]:
    """Lock the alarms whose state was not set by hand since they were read, and return them with their current rows."""
    if not outcomes:
        return []
    ids = [each.alarm.row.id for each in outcomes]
    statement = sa.select(_ALARM).where(among(connection, _ALARM.c.id, ids)).order_by(_ALARM.c.id).with_for_update()
    current = {row.id: row for row in connection.execute(statement)}
    pairs = [(each, current.get(each.alarm.row.id)) for each in outcomes]
    # Compare only the state, because a changed link must not drop a transition.
    return [
        (each, row)
        for each, row in pairs
        if row is not None and (row.state, row.state_updated) == (each.alarm.row.state, each.alarm.row.state_updated)
    ]


def _write_alarms(connection: sa.Connection, changed: Sequence[tuple[EvaluatedAlarm, Row]], now_ms: int) -> None:
    rows = [
        {
            "id": row.id,
            "state": each.evaluated.alarm.state,
            "state_updated": each.evaluated.alarm.last_transition_ms,
            "updated": max(now_ms, row.updated),
        }
        for each, row in changed
    ]
    _update(connection, _ALARM, ("id",), rows)


def _changes(connection: sa.Connection, changed: Sequence[tuple[EvaluatedAlarm, Row]]) -> list[AlarmChange]:
    metrics: dict[str, list[AlarmedMetric]] = defaultdict(list)
    totals: dict[str, int] = defaultdict(int)
    for alarm_id, name, dimensions, total in connection.execute(_first_metrics(connection, changed)):
        metrics[alarm_id].append(AlarmedMetric(name, dimensions))
        totals[alarm_id] = total
    return [
        _change(each.alarm, row, transition, metrics[row.id], totals[row.id]).bounded()
        for each, row in changed
        for transition in each.evaluated.transitions
    ]


def _first_metrics(connection: sa.Connection, changed: Sequence[tuple[EvaluatedAlarm, Row]]) -> Select:
    """Select the metrics of each alarm, up to the limit of a message, and their total number."""
    alarm_id = _METRIC.c.alarm_id
    number = sa.func.row_number().over(partition_by=alarm_id, order_by=_METRIC.c.series_id).label("number")
    total = sa.func.count().over(partition_by=alarm_id).label("total")
    which = among(connection, alarm_id, [row.id for _, row in changed])
    numbered = sa.select(_METRIC, number, total).where(which).subquery().c
    columns = (numbered.alarm_id, numbered.name, numbered.dimensions, numbered.total)
    few: Select = sa.select(*columns).where(numbered.number <= MOST_METRICS)
    return few.order_by(numbered.alarm_id, numbered.number)


def _change(
    alarm: LoadedAlarm, row: Row, transition: Transition, metrics: Sequence[AlarmedMetric], metrics_total: int
) -> AlarmChange:
    definition = alarm.definition.row
    return AlarmChange(
        tenant=row.tenant,
        alarm_id=row.id,
        definition_id=row.definition_id,
        name=definition.name,
        description=definition.description,
        severity=definition.severity,
        actions_enabled=definition.actions_enabled,
        old_state=transition.old_state,
        new_state=transition.new_state,
        reason=transition.reason,
        time_ms=transition.timestamp_ms,
        link=row.link,
        lifecycle_state=row.lifecycle_state,
        metrics=metrics,
        metrics_total=metrics_total,
        sub_alarms=[_on_the_wire(each) for each in transition.sub_alarms],
    )


def _on_the_wire(sub_alarm: SubAlarm) -> dict[str, Any]:
    sub = sub_alarm.sub_expression
    return {
        "subAlarmExpression": {
            "function": sub.function.upper(),
            "metricDefinition": {"name": sub.metric_name, "dimensions": dict(sub.dimensions)},
            "deterministic": sub.deterministic,
            "operator": sub.operator,
            "threshold": sub.threshold,
            "period": sub.period,
            "periods": sub.periods,
        },
        "subAlarmState": sub_alarm.state,
        "currentValues": list(sub_alarm.current_values),
    }


class TransitionPublisher:
    """Publishes the outbox of alarms: the transitions of passes, and transitions left by a crash of the API. The outbox
    is cleared after Kafka acknowledges the messages. After a crash in between, the same messages are sent again with
    the same ids."""

    def __init__(
        self, offset_store: OffsetStore, producer: KafkaProducer, topic: str, writer: EnvelopeWriter | None = None
    ) -> None:
        """``writer``: converts messages to Avro; if it is ``None``, messages are sent in JSON."""
        self._offset_store = offset_store
        self._producer = producer
        self._topic = topic
        self._writer = writer
        self.lost = lost_transitions()
        # The alarms with a transition that Kafka has not accepted, and the number up to which there are no others.
        self._stuck, self._after = set[str](), 0

    def publish(self) -> tuple[int, int]:
        """Return the numbers of published and of undelivered transitions. If Kafka refuses a transition, it and later
        transitions of its alarm stay in the outbox."""
        published = undelivered = 0
        while not undelivered and (rows := self._waiting()):
            # One change of each alarm is sent at a time, because Kafka could refuse a change and accept a later change,
            # which would break their order.
            first = {row.key: row for row in reversed(rows) if row.key not in self._stuck}
            done, lost = self._deliver(sorted(first.values(), key=lambda row: row.number))
            fail_point("evaluate.before_clearing")
            if done or lost:
                with self._offset_store.writing() as connection:
                    outbox.clear(connection, [*done, *lost])
            published += len(done)
            refused = first.keys() - {row.key for row in (*done, *lost)}
            undelivered = len(refused)
            if len(rows) == _MOST_AT_ONCE:  # other rows can follow
                self._stuck |= refused
        return published, undelivered

    def _waiting(self) -> list[Unpublished]:
        """Return the first rows, if possible with other alarms than the stuck ones, so that a stuck partition blocks no
        others."""
        with self._offset_store.reading() as connection:
            rows = outbox.waiting(connection, _MOST_AT_ONCE, after=self._after)
            while self._stuck and self._stuck.issuperset(row.key for row in rows):
                self._stuck, self._after = (self._stuck, rows[-1].number) if rows else (set(), 0)
                rows = outbox.waiting(connection, _MOST_AT_ONCE, after=self._after)
        return rows

    def _deliver(self, rows: Sequence[Unpublished]) -> tuple[list[Unpublished], list[Unpublished]]:
        """Return the acknowledged rows, and the rows that Kafka will never accept, which would block other rows."""
        values = [row.value for row in rows]
        try:
            values = values if self._writer is None else self._writer.values(values)
        except (RegistryUnavailable, SchemaRefused) as error:
            LOG.warning("%d transitions of alarms stay in the outbox: %s", len(rows), error)
            return [], []
        records = [
            Record(value, key=row.key.encode(), message_id=row.message_id)
            for row, value in zip(rows, values, strict=True)
        ]
        left: dict[int, Exception | None] = {}
        start, producer = 0, usable(self._producer)
        for portion in portions(records, producer.settings):
            report = producer.publish(self._topic, portion)
            left |= {start + each.index: each.error for each in (*report.failed, *report.unknown)}
            start += len(portion)
        lost = [index for index, error in left.items() if isinstance(error, MessageTooLarge)]
        for index in lost:
            self.lost.labels(EVALUATE).inc()
            LOG.error("a transition of alarm %s is lost and causes no notification: %s", rows[index].key, left[index])
        if len(left) > len(lost):
            LOG.warning("%d transitions of alarms stay in the outbox", len(left) - len(lost))
        return [row for index, row in enumerate(rows) if index not in left], [rows[index] for index in lost]
