# SPDX-License-Identifier: Apache-2.0
"""Published transitions of alarms: their ids and their messages. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from monasca_common.models import json_text, times
from monasca_common.models.fields import Fields
from monasca_common.models.limits import NON_EMPTY, TENANT

#: In ascending order.
SEVERITIES = ("LOW", "MEDIUM", "HIGH", "CRITICAL")
SEVERITY_RANKS: Mapping[str, int] = {severity: rank for rank, severity in enumerate(SEVERITIES)}
BY_HAND = "Alarm state updated via API"
MOST_METRICS = 100
"""The maximum number of metrics in a message."""
MOST_METRICS_BYTES = 262_144
MOST_REASON_CHARACTERS = 16_384
MOST_MESSAGE_BYTES = 819_200
"""The size limit of a `bounded` message. Kafka's default limit is 1 MiB."""
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class AlarmedMetric:
    """A series of an alarm."""

    name: str
    dimensions: Mapping[str, str]

    @property
    def document(self) -> dict[str, Any]:
        """Return the metric in the format of messages."""
        return {"name": self.name, "dimensions": dict(self.dimensions)}


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """A change of an alarm's state. ``sub_alarms``: the sub-alarms in the message format. ``metrics_total``: the number
    of metrics of the alarm; ``metrics`` can contain only the first of them."""

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
    metrics_total: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics_total", max(self.metrics_total, len(self.metrics)))

    @classmethod
    def read(cls, value: bytes | None) -> AlarmChange:
        """Read a `message`, and ignore unknown fields. Raises `InvalidEnvelope` if the tenant, the alarm, its
        definition, the time or the new state is missing."""
        fields = Fields.read(value).inner("alarm-transitioned")
        change = cls(
            tenant=fields.text("tenantId", TENANT) or "",
            alarm_id=fields.text("alarmId", NON_EMPTY) or "",
            definition_id=fields.text("alarmDefinitionId", NON_EMPTY) or "",
            name=fields.text("alarmName", required=False) or "",
            description=fields.text("alarmDescription", required=False) or "",
            severity=fields.text("severity", required=False) or "",
            actions_enabled=fields.get("actionsEnabled") is not False,
            old_state=fields.text("oldState", required=False) or "",
            new_state=fields.text("newState", NON_EMPTY) or "",
            reason=fields.text("stateChangeReason", required=False) or "",
            time_ms=fields.parsed("timestamp", times.from_ms) or 0,
            link=fields.text("link", required=False),
            lifecycle_state=fields.text("lifecycleState", required=False),
            metrics=fields.parsed("metrics", _metrics, required=False) or (),
            sub_alarms=fields.parsed("subAlarms", _objects, required=False) or (),
            metrics_total=fields.parsed("metrics_total", _count, required=False) or 0,
        )
        fields.raise_violations()
        return change

    def bounded(self) -> AlarmChange:
        """Return the change, shortened so that its message is at most `MOST_MESSAGE_BYTES`."""
        first = self.metrics[:MOST_METRICS]
        sizes = accumulate(len(json_text.write(metric.document)) for metric in first)
        metrics = [metric for metric, size in zip(first, sizes, strict=True) if size <= MOST_METRICS_BYTES]
        reason = self.reason
        if len(reason) > MOST_REASON_CHARACTERS:
            reason = f"{reason[: MOST_REASON_CHARACTERS - 1]}…"
        return replace(self, reason=reason, metrics=metrics)

    @property
    def message_id(self) -> bytes:
        """Return the message id, which is the same in every process and at every attempt."""
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
                    "metrics": [each.document for each in self.metrics],
                    "metrics_total": self.metrics_total,
                }
            }
        )


def _count(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("must be an integer")
    return value


def _objects(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError("must be an array of objects")
    return value


def _metrics(value: Any) -> list[AlarmedMetric]:
    """Return the name and the dimensions of each metric, and ignore other fields."""
    metrics = []
    for each in _objects(value):
        dimensions = each.get("dimensions") or {}
        if not isinstance(dimensions, dict):
            raise ValueError("must have dimensions that are objects")
        metrics.append(AlarmedMetric(str(each.get("name", "")), {key: str(text) for key, text in dimensions.items()}))
    return metrics
