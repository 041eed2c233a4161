# SPDX-License-Identifier: Apache-2.0
"""Logs: ``{"log": {"message", "dimensions", …}, "meta": {"tenantId", "region"}, "creation_time": <s>}``.

The time of a log is its ``timestamp`` (ms or ISO 8601), or the envelope's creation_time. Members other than message,
dimensions and timestamp are stored as ``fields``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from monasca_common.models import json_text, times
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.fields import Fields
from monasca_common.models.limits import (
    ANY_TEXT,
    MOST_DIMENSIONS,
    POSTED,
    REGION,
    STORED,
    TENANT,
    Limits,
    too_many_dimensions,
)
from monasca_common.models.post import (
    DEFAULT_RULES,
    MOST_BYTES,
    ParsedPost,
    PostRules,
    envelopes_of,
    members_of,
    parse_each,
    split,
)
from monasca_common.models.rows import Decoded, LogEntry, decode_each

MOST_MESSAGE_BYTES = 1024 * 1024
OWN_MEMBERS = ("message", "dimensions", "timestamp")  # all others are ``fields``


def decode_all(values: Sequence[bytes | None], *, max_dimensions: int = MOST_DIMENSIONS) -> Decoded[LogEntry]:
    return decode_each(values, partial(_entry, max_dimensions=max_dimensions))


def _entry(value: bytes | None, *, max_dimensions: int) -> tuple[LogEntry, bool]:
    whole = Fields.read(value)
    log, meta = whole.inner("log"), whole.inner("meta")
    tenant = meta.text("tenantId", TENANT) or ""
    region = meta.text("region", REGION, required=False) or ""
    created_ms = whole.parsed("creation_time", times.version, required=log.members.get("timestamp") is None)
    time_ms = log.parsed("timestamp", times.from_ms_or_iso, required=False)
    message, rest = log.text("message", ANY_TEXT) or "", _rest(log)
    dimensions = log.dimensions(STORED, max_dimensions)
    whole.raise_violations()
    entry = LogEntry(
        time_ms=(created_ms or 0) if time_ms is None else time_ms,
        tenant=tenant,
        region=region,
        message=message,
        dimensions=json_text.write_sorted(dimensions).decode(),
        fields=rest.decode(),
    )
    return entry, time_ms is not None


def _rest(log: Fields) -> bytes:
    written, fault = json_text.checked({key: value for key, value in log.members.items() if key not in OWN_MEMBERS})
    if fault:
        log.report(None, [fault])
    return written


def parse_post(body: bytes, rules: PostRules = DEFAULT_RULES) -> ParsedPost:
    """Parse ``{"dimensions": {}, "logs": [{"message", "dimensions", …}]}``; a log's dimensions override common
    dimensions, which count towards its limit.

    ``valid`` contains logs with merged dimensions, and their timestamp, if any, in ms. Raises `Unreadable`, and
    `InvalidEnvelope` if the body as a whole breaks a rule (no logs, invalid common dimensions).
    """
    members = members_of(body)
    if members.get("logs") in (None, b"null"):
        raise InvalidEnvelope([Violation("logs", "is required: an array of logs")])
    given = Fields.read(b'{"dimensions":%b}' % members.get("dimensions", b"{}"))
    common = given.dimensions(POSTED, rules.max_dimensions)
    given.raise_violations()
    elements = split(members["logs"], "logs")
    common_bytes = len(json_text.write(common))
    if common_bytes * len(elements) > MOST_BYTES:  # each log has a copy
        rule = f"has {common_bytes} bytes, which {len(elements)} logs repeat: send fewer of them at a time"
        raise InvalidEnvelope([Violation("dimensions", rule, too_large=True)])

    def parse(element: bytes) -> bytes:
        return normalised(Fields.read(element), POSTED, common, rules)

    return parse_each(elements, parse, "logs[{}]".format)


def normalised(log: Fields, limits: Limits, common: dict[str, str], rules: PostRules) -> bytes:
    """Return a log as in `ParsedPost.valid`. Raises `InvalidEnvelope`."""
    message = log.text("message", ANY_TEXT)
    size_bytes = len((message or "").encode(errors="replace"))
    if size_bytes > MOST_MESSAGE_BYTES:
        rule = f"has {size_bytes} bytes: at most {MOST_MESSAGE_BYTES} are allowed"
        log.report("message", [rule], too_large=True)
    dimensions = common | log.dimensions(limits, rules.max_dimensions)
    if len(dimensions) > rules.max_dimensions:
        rule = too_many_dimensions(len(dimensions), rules.max_dimensions)
        log.report("dimensions", [f"with the common dimensions {rule}"])
    members: dict[str, Any] = {"message": message, "dimensions": dimensions}
    time_ms = log.parsed("timestamp", partial(rules.allowed.parsed, times.from_ms_or_iso), required=False)
    if time_ms is not None:
        members["timestamp"] = time_ms
    _rest(log)
    log.raise_violations()
    for key in sorted(log.members.keys() - OWN_MEMBERS):
        members[key] = log.members[key]
    return json_text.write(members)


def envelopes(logs_json: Sequence[bytes], tenant: str, region: str, created: float) -> list[bytes]:
    """See `envelopes_of`."""
    return envelopes_of(b"log", logs_json, {"tenantId": tenant, "region": region}, created)
