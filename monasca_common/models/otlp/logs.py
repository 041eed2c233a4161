# SPDX-License-Identifier: Apache-2.0
"""OTLP log records as logs: the body is the message; allowed attributes of the resource and the scope are dimensions;
severity, event name, attributes, and the ids of trace and span in hexadecimal are other members."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from monasca_common.models import log
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.fields import Fields
from monasca_common.models.limits import STORED
from monasca_common.models.otlp.attributes import common_dimensions, plain_members, text
from monasca_common.models.otlp.requests import NS_PER_MS, ItemCount, too_large
from monasca_common.models.post import DEFAULT_RULES, MOST_BYTES, ParsedPost, PostRules

_MOST_VIOLATIONS, _MOST_OF_ONE = 100, 10  # limits for all logs, and for one log
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8


def parse_logs(
    request: ExportLogsServiceRequest,
    attributes: frozenset[str],
    rules: PostRules = DEFAULT_RULES,
    *,
    most_bytes: int = MOST_BYTES,
) -> ParsedPost:
    """Parse the log records; the limits are `limits.STORED`. ``attributes``: see `common_dimensions`. ``most_bytes``:
    the maximum size of all logs. Raises `InvalidEnvelope` for a larger request."""
    items = ItemCount()
    valid: list[bytes] = []
    indices: list[int] = []
    violations: list[Violation] = []
    total, bytes_left = 0, most_bytes
    for of_resource in items.of(request.resource_logs):
        of_all = common_dimensions(of_resource.resource, attributes, items)
        for of_scope in items.of(of_resource.scope_logs):
            common = of_all | common_dimensions(of_scope.scope, attributes, items)
            for index, record in enumerate(items.of(of_scope.log_records), total):
                items.of(record.attributes)
                fields = Fields(_members(record, common))
                try:
                    written = log.normalised(fields, STORED, {}, rules)
                except InvalidEnvelope as error:
                    if len(violations) < _MOST_VIOLATIONS:
                        violations += [each.within(f"log {index}") for each in error.violations[:_MOST_OF_ONE]]
                    continue
                valid.append(written)
                indices.append(index)
                bytes_left -= len(written)
                if bytes_left < 0:  # each log has the dimensions of its resource
                    raise too_large(f"has more than {most_bytes} bytes of envelopes")
            total += len(of_scope.log_records)
    return ParsedPost(valid, indices, total, tuple(violations))


def _members(record: LogRecord, common: dict[str, str]) -> dict[str, Any]:
    """Return the members of a log; missing members are omitted."""
    time_ns = record.time_unix_nano or record.observed_time_unix_nano
    members = {
        "message": text(record.body),
        "dimensions": common,
        "timestamp": time_ns // NS_PER_MS,
        "severity_number": record.severity_number,
        "severity_text": record.severity_text,
        "event_name": record.event_name,
        "trace_id": record.trace_id.hex() if len(record.trace_id) == _TRACE_ID_BYTES else "",
        "span_id": record.span_id.hex() if len(record.span_id) == _SPAN_ID_BYTES else "",
        "attributes": plain_members(record.attributes),
    }
    return {key: value for key, value in members.items() if value or key == "message"}
