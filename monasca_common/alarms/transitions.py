# SPDX-License-Identifier: Apache-2.0
"""Transitions of alarms as they are published: their ids and their messages. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monasca_common.models import json_text

BY_HAND = "Alarm state updated via API"
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class AlarmedMetric:
    """A series of an alarm."""

    name: str
    dimensions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """One change of an alarm's state. ``sub_alarms``: as they are on the wire."""

    tenant: str
    alarm_id: str
    definition_id: str
    name: str
    description: str
    severity: str
    actions_enabled: bool
    old_state: str
    new_state: str
    reason: str
    time_ms: int
    link: str | None
    lifecycle_state: str | None
    metrics: Sequence[AlarmedMetric]
    sub_alarms: Sequence[Mapping[str, Any]] = ()

    @property
    def message_id(self) -> bytes:
        """The same whoever makes it, and however often."""
        text = f"{self.alarm_id}/{self.time_ms}/{self.new_state}"
        return hashlib.blake2b(text.encode(), digest_size=_ID_BYTES).digest()

    @property
    def message(self) -> bytes:
        return json_text.write(
            {
                "alarm-transitioned": {
                    "tenantId": self.tenant,
                    "alarmId": self.alarm_id,
                    "alarmDefinitionId": self.definition_id,
                    "alarmName": self.name,
                    "alarmDescription": self.description,
                    "actionsEnabled": self.actions_enabled,
                    "stateChangeReason": self.reason,
                    "severity": self.severity,
                    "link": self.link,
                    "lifecycleState": self.lifecycle_state,
                    "oldState": self.old_state,
                    "newState": self.new_state,
                    "timestamp": self.time_ms,
                    "subAlarms": list(self.sub_alarms),
                    "metrics": [{"name": each.name, "dimensions": dict(each.dimensions)} for each in self.metrics],
                }
            }
        )
