# SPDX-License-Identifier: Apache-2.0
"""Events: ``{"event": {"event_type", "timestamp", "payload", "dimensions"}, "meta": {"project_id"}, "creation_time"}``.

The time of an event is its ``timestamp`` (ms or ISO 8601), otherwise the timestamp of the posted bulk, otherwise the
envelope's creation_time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from monasca_common.models import json_text, times
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.fields import Fields
from monasca_common.models.limits import MOST_DIMENSIONS, NON_EMPTY, POSTED, STORED, TENANT
from monasca_common.models.post import DEFAULT_RULES, ParsedPost, PostRules, envelopes_of, members_of, parse_each, split
from monasca_common.models.rows import Decoded, Event, decode_each


def decode_all(values: Sequence[bytes | None], *, max_dimensions: int = MOST_DIMENSIONS) -> Decoded[Event]:
    return decode_each(values, partial(_event, max_dimensions=max_dimensions))


def _event(value: bytes | None, *, max_dimensions: int) -> tuple[Event, bool]:
    whole = Fields.read(value)
    event, meta = whole.inner("event"), whole.inner("meta")
    tenant = meta.text("project_id", TENANT) or ""
    created_ms = whole.parsed("creation_time", times.version, required=event.members.get("timestamp") is None)
    time_ms = event.parsed("timestamp", times.from_ms_or_iso, required=False)
    event_type = event.text("event_type", NON_EMPTY) or ""
    payload, dimensions = event.document("payload", dict), event.dimensions(STORED, max_dimensions)
    whole.raise_violations()
    row = Event(
        time_ms=(created_ms or 0) if time_ms is None else time_ms,
        tenant=tenant,
        event_type=event_type,
        payload=payload,
        dimensions=json_text.write_sorted(dimensions).decode(),
    )
    return row, time_ms is not None


def parse_post(body: bytes, rules: PostRules = DEFAULT_RULES) -> ParsedPost:
    """Parse ``{"timestamp", "events": [{"dimensions": {}, "event": {"event_type", "payload"}}]}``.

    ``valid`` contains ``{"event_type", "payload", "dimensions", "timestamp"}``, the last in ms, if the event or the
    body has one. Raises `Unreadable`, and `InvalidEnvelope` if the body as a whole breaks a rule (no events, an invalid
    timestamp).
    """
    members = members_of(body)
    common = Fields.read(b'{"timestamp":%b}' % members.get("timestamp", b"null"))
    common_ms = common.parsed("timestamp", partial(rules.allowed.parsed, times.from_ms_or_iso), required=False)
    common.raise_violations()
    if members.get("events") in (None, b"null"):
        raise InvalidEnvelope([Violation("events", "is required: an array of events")])
    elements = split(members["events"], "events")
    if not elements:
        raise InvalidEnvelope([Violation("events", "must not be empty")])
    return parse_each(elements, partial(_parse_element, common_ms=common_ms, rules=rules), "events[{}]".format)


def _parse_element(element: bytes, *, common_ms: int | None, rules: PostRules) -> bytes:
    whole = Fields.read(element)
    event = whole.inner("event")
    event.text("event_type", NON_EMPTY)
    event.document("payload", dict)
    time_ms = event.parsed("timestamp", partial(rules.allowed.parsed, times.from_ms_or_iso), required=False)
    normalised: dict[str, Any] = {
        "event_type": event.members.get("event_type"),
        "payload": event.members.get("payload") or {},
        "dimensions": whole.dimensions(POSTED, rules.max_dimensions),
    }
    whole.raise_violations()
    if (event_ms := common_ms if time_ms is None else time_ms) is not None:
        normalised["timestamp"] = event_ms
    return json_text.write(normalised)


def envelopes(events_json: Sequence[bytes], tenant: str, _region: str, created: float) -> list[bytes]:
    """See `envelopes_of`; events have no region."""
    return envelopes_of(b"event", events_json, {"project_id": tenant}, created)
