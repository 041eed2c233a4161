# SPDX-License-Identifier: Apache-2.0
r"""Rows as InfluxDB's line protocol: ``measurement,tag=… field=… time``. Times are in milliseconds.

A metric is a measurement of its name, tagged with ``_tenant_id``, ``_region`` and its dimensions, with the fields
``value``, ``value_meta`` (JSON; ``{}`` for none, because overwriting a point keeps fields that are omitted) and
``version``. A value that is not finite, which InfluxDB refuses, is written to the field ``value_text`` instead of
``value``. An alarm's transition is a point of ``alarm_state_history``, tagged with ``tenant_id`` and ``alarm_id``.

The protocol cannot express everything, and InfluxDB often misreads a line without an error: a line that begins with
``#`` is a comment, tabs before a name are dropped, and a backslash before a separator, before a quote or at the end
escapes the next character. Such names and dimensions are refused, because a refused row becomes a dead letter, whereas
a misread row is lost. Empty tags are not written.
"""

from __future__ import annotations

import re

from monasca_common.models.numbers import value_text
from monasca_common.models.rows import AlarmTransition, Measurement
from monasca_common.models.series import Series
from monasca_common.storage.settings import ALARM_HISTORY_MEASUREMENT

_OWN_TAGS = frozenset({"_tenant_id", "_region"})
_MISREAD = re.compile(r"\\(?:[,= \"]|\Z)|\n")
_MISREAD_AT_THE_START = ("#", "\t", "\0")
_SEPARATORS = str.maketrans({separator: f"\\{separator}" for separator in ",= "})
_NAME_SEPARATORS = str.maketrans({separator: f"\\{separator}" for separator in ", "})
_QUOTED = str.maketrans({'"': '\\"', "\\": "\\\\"})


class NotWritable(ValueError):
    """The protocol cannot express this row; the text states the reason."""


def series_head(series: Series) -> str:
    """Return the part of a line that precedes the fields. Raises `NotWritable`."""
    if series.name == ALARM_HISTORY_MEASUREMENT:
        raise NotWritable(
            f"its name, {series.name}, is reserved for the alarm history in InfluxDB: the metric would appear in the "
            "history of another tenant"
        )
    tags = {"_tenant_id": series.tenant, "_region": series.region}
    for key, value in series.dimensions.items():
        if key in _OWN_TAGS:
            raise NotWritable(f"its dimension {key} has the name of a reserved tag")
        tags[key] = value
    if series.name.startswith(_MISREAD_AT_THE_START):
        raise NotWritable("its name begins with a character that InfluxDB drops or treats as a comment")
    return _head(series.name, tags)


def measurement_line(head: str, row: Measurement) -> str:
    meta = '"{}"' if row.value_meta is None else _quoted(row.value_meta)
    text = value_text(row.value)
    value = f"value={row.value!r}" if text is None else f'value_text="{text}"'
    return f"{head} {value},value_meta={meta},version={row.version}i {row.time_ms}"


def transition_line(row: AlarmTransition, message_id: bytes) -> str:
    """Return the line of a transition. Raises `NotWritable`."""
    fields = {
        "alarm_definition_id": row.alarm_definition_id,
        "alarm_name": row.alarm_name,
        "old_state": row.old_state,
        "new_state": row.new_state,
        "severity": row.severity,
        "reason": row.reason,
        "reason_data": "{}",
        "link": row.link or "",
        "lifecycle_state": row.lifecycle_state or "",
        "metrics": row.metrics,
        "sub_alarms": row.sub_alarms,
        "message_id": message_id.hex(),
    }
    written = ",".join(f"{name}={_quoted(text)}" for name, text in fields.items())
    head = _head(ALARM_HISTORY_MEASUREMENT, {"tenant_id": row.tenant, "alarm_id": row.alarm_id})
    return f"{head} {written} {row.time_ms}"


def _head(name: str, tags: dict[str, str]) -> str:
    """Return the name and the tags, sorted by key so that the server does not need to sort them."""
    parts = [_checked(name).translate(_NAME_SEPARATORS)]
    parts += [f"{_tag_text(key)}={_tag_text(tags[key])}" for key in sorted(tags) if tags[key]]
    return ",".join(parts)


def _tag_text(text: str) -> str:
    return _checked(text).translate(_SEPARATORS)


def _checked(text: str) -> str:
    if _MISREAD.search(text):
        raise NotWritable(
            "its name or a dimension has a line break, or a backslash at its end or before a comma, space, quote or "
            "equals sign: InfluxDB's line protocol cannot write these"
        )
    return text


def _quoted(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'
