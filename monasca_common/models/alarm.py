# SPDX-License-Identifier: Apache-2.0
"""Alarm transitions: ``{"alarm-transitioned": {"tenantId", "alarmId", "newState", "oldState", "timestamp": <ms>, …}}``.

Tenant, alarm, time and both states are required. Other missing members are stored as empty, because older threshold
engines omit some members. Sub-alarms and metrics are stored as the JSON of the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from monasca_common.models import times
from monasca_common.models.fields import Fields
from monasca_common.models.limits import ANY_TEXT, NON_EMPTY, TENANT, TextRule
from monasca_common.models.rows import AlarmTransition, Decoded, decode_each

_SHORT = TextRule(least=0)


def decode_all(values: Sequence[bytes | None]) -> Decoded[AlarmTransition]:
    return decode_each(values, _transition)


def _transition(value: bytes | None) -> tuple[AlarmTransition, bool]:
    alarm = Fields.read(value).inner("alarm-transitioned")
    transition = AlarmTransition(
        time_ms=alarm.parsed("timestamp", times.from_ms) or 0,
        tenant=alarm.text("tenantId", TENANT) or "",
        alarm_id=alarm.text("alarmId", NON_EMPTY) or "",
        alarm_definition_id=alarm.text("alarmDefinitionId", _SHORT, required=False) or "",
        alarm_name=alarm.text("alarmName", _SHORT, required=False) or "",
        old_state=alarm.text("oldState", NON_EMPTY) or "",
        new_state=alarm.text("newState", NON_EMPTY) or "",
        severity=alarm.text("severity", _SHORT, required=False) or "",
        reason=alarm.text("stateChangeReason", ANY_TEXT, required=False) or "",
        link=alarm.text("link", ANY_TEXT, required=False),
        lifecycle_state=alarm.text("lifecycleState", ANY_TEXT, required=False),
        metrics=alarm.document("metrics", list),
        sub_alarms=alarm.document("subAlarms", list),
    )
    alarm.raise_violations()
    return transition, True
