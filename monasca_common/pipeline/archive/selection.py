# SPDX-License-Identifier: Apache-2.0
"""Which archived records are wanted: by their time, by what they are about, by whose they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from monasca_common.models import json_text

_REFUSED = (*json_text.UNREADABLE, TypeError)


class _Metric(msgspec.Struct, gc=False):
    name: str = ""


class _Event(msgspec.Struct, gc=False):
    event_type: str = ""


class _Alarm(msgspec.Struct, gc=False, rename="camel"):
    alarm_name: str = ""
    tenant_id: str = ""


class _Meta(msgspec.Struct, gc=False):
    tenant: str = msgspec.field(default="", name="tenantId")
    project: str = msgspec.field(default="", name="project_id")


class _Envelope(msgspec.Struct, gc=False):
    metric: _Metric | None = None
    event: _Event | None = None
    alarm: _Alarm | None = msgspec.field(default=None, name="alarm-transitioned")
    meta: _Meta | None = None


_decode = msgspec.json.Decoder(_Envelope).decode


@dataclass(frozen=True, slots=True)
class Selection:
    """``from_ms`` to just before ``to_ms``, ``None``: no bound. ``name`` (of a metric, an event's type, or an alarm's
    name) and ``tenant``: regular expressions of the whole text; with one, what cannot be read is not wanted."""

    from_ms: int | None = None
    to_ms: int | None = None
    name: re.Pattern[str] | None = None
    tenant: re.Pattern[str] | None = None

    def has_time(self, first_ms: int, last_ms: int) -> bool:
        """Whether a time between these, both included, may be wanted."""
        after = self.from_ms is None or last_ms >= self.from_ms
        return after and (self.to_ms is None or first_ms < self.to_ms)

    @property
    def looks_inside(self) -> bool:
        return self.name is not None or self.tenant is not None

    def wanted(self, values: Sequence[bytes | None]) -> list[bool]:
        """By what they tell; not by their time."""
        return [self._is_wanted(value) for value in values]

    def _is_wanted(self, value: bytes | None) -> bool:
        try:
            envelope = _decode(value)  # type: ignore[arg-type]
        except _REFUSED:
            return False
        name, tenant = _name_and_tenant(envelope)
        return _matches(self.name, name) and _matches(self.tenant, tenant)


def _matches(wanted: re.Pattern[str] | None, text: str) -> bool:
    return wanted is None or wanted.fullmatch(text) is not None


def _name_and_tenant(envelope: _Envelope) -> tuple[str, str]:
    """Empty where there is none: a log has no name."""
    if envelope.alarm is not None:
        return envelope.alarm.alarm_name, envelope.alarm.tenant_id
    tenant = (envelope.meta.tenant or envelope.meta.project) if envelope.meta is not None else ""
    if envelope.metric is not None:
        return envelope.metric.name, tenant
    return envelope.event.event_type if envelope.event is not None else "", tenant
