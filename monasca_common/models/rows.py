# SPDX-License-Identifier: Apache-2.0
"""What envelopes come to once they are decoded: the rows that storage keeps. Times are integer ms since the epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from monasca_common.models.errors import InvalidEnvelope
from monasca_common.models.series import Series


class Measurement(NamedTuple):
    """``value_meta`` is JSON text or ``None``. Of two with the same series and time the greater
    ``(version, value, value_meta)`` counts; ``version`` is the envelope's creation_time in ms."""

    series: Series
    time_ms: int
    value: float
    value_meta: str | None
    version: int


class AlarmTransition(NamedTuple):
    """``metrics`` and ``sub_alarms`` are JSON text."""

    time_ms: int
    tenant: str
    alarm_id: str
    alarm_definition_id: str
    alarm_name: str
    old_state: str
    new_state: str
    severity: str
    reason: str
    link: str | None
    lifecycle_state: str | None
    metrics: str
    sub_alarms: str


class LogEntry(NamedTuple):
    """``dimensions`` and ``fields`` (all else that the envelope's log had) are JSON text."""

    time_ms: int
    tenant: str
    region: str
    message: str
    dimensions: str
    fields: str


class Event(NamedTuple):
    """``payload`` and ``dimensions`` are JSON text."""

    time_ms: int
    tenant: str
    event_type: str
    payload: str
    dimensions: str


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Decoded(Generic[Row]):
    """What became of the messages of one call: ``rows[i]`` is of message ``indices[i]``; ``errors`` by message.

    ``untimed``: the places in ``rows`` of those without a time of their own. They have the envelope's creation_time,
    which is another one in each attempt to send the message.
    """

    rows: list[Row]
    indices: list[int]
    errors: dict[int, InvalidEnvelope]
    untimed: frozenset[int] = frozenset()


def decode_each(values: Sequence[bytes | None], decode: Callable[[bytes | None], tuple[Row, bool]]) -> Decoded[Row]:
    """``decode`` returns a row and whether it has a time of its own, or raises `InvalidEnvelope`. One bad message
    leaves the others alone."""
    rows: list[Row] = []
    errors: dict[int, InvalidEnvelope] = {}
    untimed = []
    for index, value in enumerate(values):
        try:
            row, has_own_time = decode(value)
        except InvalidEnvelope as error:
            errors[index] = error
            continue
        if not has_own_time:
            untimed.append(len(rows))
        rows.append(row)
    return Decoded(rows, good_indices(len(values), errors), errors, frozenset(untimed))


def good_indices(count: int, errors: Mapping[int, object]) -> list[int]:
    if not errors:
        return list(range(count))
    return [index for index in range(count) if index not in errors]
