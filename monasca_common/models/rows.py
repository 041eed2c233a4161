# SPDX-License-Identifier: Apache-2.0
"""Decoded envelopes: the rows of storage. Times are integer ms since the epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from monasca_common.models.errors import InvalidEnvelope
from monasca_common.models.series import Series


class Measurement(NamedTuple):
    """``value_meta``: JSON or ``None``. ``version``: the envelope's creation_time in ms. If several measurements have
    the same series and time, the one with the greatest ``(version, value, value_meta)`` is stored."""

    series: Series
    time_ms: int
    value: float
    value_meta: str | None
    version: int


class AlarmTransition(NamedTuple):
    """``metrics`` and ``sub_alarms`` are JSON."""

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
    """``dimensions`` and ``fields`` (all other members of the envelope's log) are JSON."""

    time_ms: int
    tenant: str
    region: str
    message: str
    dimensions: str
    fields: str


class Event(NamedTuple):
    """``payload`` and ``dimensions`` are JSON."""

    time_ms: int
    tenant: str
    event_type: str
    payload: str
    dimensions: str


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Decoded(Generic[Row]):
    """Decoded messages: ``rows[i]`` is the row of message ``indices[i]``. ``errors``: errors by message index.

    ``untimed``: indices of rows without their own time. Their time is the envelope's creation_time, which differs
    between attempts to send the message.
    """

    rows: list[Row]
    indices: list[int]
    errors: dict[int, InvalidEnvelope]
    untimed: frozenset[int] = frozenset()


def decode_each(values: Sequence[bytes | None], decode: Callable[[bytes | None], tuple[Row, bool]]) -> Decoded[Row]:
    """Decode messages independently. ``decode`` returns a row and whether it has its own time, or raises
    `InvalidEnvelope`."""
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


def good_indices(count: int, errors: Collection[int]) -> list[int]:
    if not errors:
        return list(range(count))
    return [index for index in range(count) if index not in errors]
