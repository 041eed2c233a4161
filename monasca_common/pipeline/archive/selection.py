# SPDX-License-Identifier: Apache-2.0
"""Selects archived records by time, by name and by tenant."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from monasca_common.models import json_text
from monasca_common.pipeline.patterns import Pattern

_LONGEST_VALID = 255
_REFUSED = (*json_text.UNREADABLE, TypeError)


class _ArchivedMetric(msgspec.Struct, gc=False):
    name: str = ""


class _ArchivedEvent(msgspec.Struct, gc=False):
    event_type: str = ""


class _ArchivedAlarm(msgspec.Struct, gc=False, rename="camel"):
    alarm_name: str = ""
    tenant_id: str = ""


class _ArchivedMeta(msgspec.Struct, gc=False):
    tenant: str = msgspec.field(default="", name="tenantId")
    project: str = msgspec.field(default="", name="project_id")


class _ArchivedEnvelope(msgspec.Struct, gc=False):
    metric: _ArchivedMetric | None = None
    event: _ArchivedEvent | None = None
    alarm: _ArchivedAlarm | None = msgspec.field(default=None, name="alarm-transitioned")
    meta: _ArchivedMeta | None = None


_decode = msgspec.json.Decoder(_ArchivedEnvelope).decode


@dataclass(frozen=True, slots=True)
class Selection:
    """Event times from ``from_ms`` to just before ``to_ms`` (``None``: no bound), and two regular expressions.

    ``name`` (a metric's name, an event's type, or an alarm's name) and ``tenant`` match the whole text. With one of
    them, a record that cannot be decoded is not selected.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    name: Pattern | None = None
    tenant: Pattern | None = None

    def has_time(self, first_ms: int, last_ms: int) -> bool:
        """Whether a time between these, both included, may be selected."""
        after = self.from_ms is None or last_ms >= self.from_ms
        return after and (self.to_ms is None or first_ms < self.to_ms)

    @property
    def looks_inside(self) -> bool:
        return self.name is not None or self.tenant is not None

    def wanted(self, values: Sequence[bytes | None]) -> list[bool]:
        """Which values are selected by name and tenant; times are not compared here."""
        return [self._is_wanted(value) for value in values]

    def _is_wanted(self, value: bytes | None) -> bool:
        try:
            envelope = _decode(value)  # type: ignore[arg-type]
        except _REFUSED:
            return False
        name, tenant = _name_and_tenant(envelope)
        return _matches(self.name, name) and _matches(self.tenant, tenant)


def _matches(wanted: Pattern | None, text: str) -> bool:
    if wanted is None:
        return True
    # What a valid message has repeats, and looking it up takes a tenth of matching it.
    return _is_all_of(wanted, text) if len(text) <= _LONGEST_VALID else wanted.is_all_of(text)


@functools.lru_cache(maxsize=10_000)
def _is_all_of(wanted: Pattern, text: str) -> bool:
    return wanted.is_all_of(text)


def _name_and_tenant(envelope: _ArchivedEnvelope) -> tuple[str, str]:
    """The name and the tenant; empty if there is none: a log has no name."""
    if envelope.alarm is not None:
        return envelope.alarm.alarm_name, envelope.alarm.tenant_id
    tenant = (envelope.meta.tenant or envelope.meta.project) if envelope.meta is not None else ""
    if envelope.metric is not None:
        return envelope.metric.name, tenant
    return envelope.event.event_type if envelope.event is not None else "", tenant
