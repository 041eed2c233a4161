# SPDX-License-Identifier: Apache-2.0
"""When what a message tells of happened, as the models read it; a message that does not say it has Kafka's time.

An envelope is known by its one member: ``metric``, ``alarm-transitioned``, ``log`` or ``event``. Whether it breaks
another rule of its model is nothing to an archive: it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from monasca_common.models import json_text, times

#: The last millisecond of the year 9999: a time beyond it is none, and has no date.
LATEST_MS = 253_402_300_799_999
_REFUSED = (*json_text.UNREADABLE, TypeError)  # TypeError: a message without a value


class _Timed(msgspec.Struct, gc=False):
    timestamp: int | float


class _Dated(msgspec.Struct, gc=False):
    timestamp: int | float | str | None = None


class _Envelope(msgspec.Struct, gc=False):
    metric: _Timed | None = None
    log: _Dated | None = None
    event: _Dated | None = None
    alarm: _Timed | None = msgspec.field(default=None, name="alarm-transitioned")
    creation_time: int | float | None = None


_decode = msgspec.json.Decoder(_Envelope).decode


def event_times(values: Sequence[bytes | None], kafka_times_ms: Iterable[int]) -> tuple[list[int], int]:
    """The time of each message in ms, and how many of them are Kafka's."""
    found: list[int] = []
    undated = 0
    decode, add = _decode, found.append
    for value, kafka_ms in zip(values, kafka_times_ms, strict=True):
        time_ms: int | float | None
        try:
            envelope = decode(value)  # type: ignore[arg-type]
            metric = envelope.metric
            time_ms = metric.timestamp if metric is not None else _of_others(envelope)
        except _REFUSED:
            time_ms = None
        if time_ms is None or not 0 <= time_ms <= LATEST_MS:
            undated += 1
            add(min(max(kafka_ms, 0), LATEST_MS))  # -1: a log without times
        else:
            add(int(time_ms))
    return found, undated


def _of_others(envelope: _Envelope) -> int | float | None:
    """Raises `ValueError`."""
    if envelope.alarm is not None:
        return envelope.alarm.timestamp
    own = envelope.log or envelope.event
    if own is None:
        return None
    if own.timestamp is not None:
        return times.from_ms_or_iso(own.timestamp)
    return times.version(envelope.creation_time) if envelope.creation_time is not None else None
