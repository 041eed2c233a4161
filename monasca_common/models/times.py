# SPDX-License-Identifier: Apache-2.0
"""Conversion of times in envelopes to integer milliseconds since the epoch, rounded down."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from monasca_common.models.limits import LATEST_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
ISO_8601 = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?(?:Z?([+-]\d\d):?(\d\d)|Z)?", re.ASCII
)

NOT_A_TIME = "must be milliseconds since the epoch, between 0 and 2^63 - 1"
NOT_A_DATE = NOT_A_TIME + ", or ISO 8601 like 2026-01-31T23:59:59.123Z"
NOT_SECONDS = "must be seconds since the epoch, at least 0"

# Units that clients send by mistake, per second.
_MISTAKEN = {"seconds": 1, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Window:
    """The range of allowed times, inclusive at both ends, in ms since the epoch."""

    earliest_ms: int = 0
    latest_ms: int = LATEST_MS

    def __contains__(self, time_ms: float) -> bool:
        return self.earliest_ms <= time_ms <= self.latest_ms

    def fault(self, time_ms: int) -> str | None:
        """Return the rule that a time breaks, with the unit in which the time would be allowed, or ``None``."""
        if time_ms in self:
            return None
        if time_ms < self.earliest_ms:
            fault = f"is older than the retention: the earliest allowed time is {shown(self.earliest_ms)}"
        else:
            fault = f"is in the future: the latest allowed time is {shown(self.latest_ms)}"
        units = [unit for unit, per_second in _MISTAKEN.items() if time_ms * 1000 // per_second in self]
        return f"{fault}; it appears to be in {units[0]}: send milliseconds" if units else fault

    def parsed(self, parse: Callable[[Any], int], value: Any) -> int:
        """Return the result of ``parse``. Raises its errors, and `ValueError` for a time outside the window."""
        time_ms = parse(value)
        if fault := self.fault(time_ms):
            raise ValueError(fault)
        return time_ms


ANY_TIME = Window()


def shown(time_ms: int) -> str:
    """Return the time in ISO 8601, or in milliseconds if the calendar cannot represent it."""
    try:
        return (_EPOCH + time_ms * _MILLISECOND).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{time_ms} ms"


def from_ms(value: Any) -> int:
    """Return a number as ms. Raises `ValueError` with the rule unless the number is between 0 and 2^63 - 1."""
    if type(value) not in (int, float) or not 0 <= value <= LATEST_MS:
        raise ValueError(NOT_A_TIME)
    return int(value)


def from_ms_or_iso(value: Any) -> int:
    """Convert a number (see `from_ms`) or an ISO 8601 string (by default in UTC) to ms.

    An example of the public API has both ``Z`` and an offset (``…:11Z+0200``); the offset is used.
    """
    if not isinstance(value, str):
        try:
            return from_ms(value)
        except ValueError:
            raise ValueError(NOT_A_DATE) from None
    match = ISO_8601.fullmatch(value)
    if match is None:
        raise ValueError(NOT_A_DATE)
    date, time, fraction, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{time}{hours}:{minutes}" if hours else f"{date}T{time}+00:00")
    except ValueError:
        raise ValueError(NOT_A_DATE) from None
    time_ms = (moment - _EPOCH) // _MILLISECOND + int((fraction or "").ljust(3, "0")[:3])
    return from_ms(time_ms)


def seconds_text(seconds: float) -> bytes:
    """Return the text of a creation_time in envelopes: seconds, with milliseconds if they are not 0."""
    whole, rest_ms = divmod(round(seconds * 1000), 1000)
    return b"%d.%03d" % (whole, rest_ms) if rest_ms else b"%d" % whole


def version(creation_time: Any) -> int:
    """Return the envelope's ``creation_time`` (seconds, int or float) in ms; 0 if an old writer omitted it.

    0 is less than every real version, so a message of known age overrides a message of unknown age.
    """
    if creation_time is None:
        return 0
    if type(creation_time) not in (int, float) or not 0 <= creation_time <= LATEST_MS // 1000:
        raise ValueError(NOT_SECONDS)
    return round(float(creation_time) * 1000) if isinstance(creation_time, float) else int(creation_time) * 1000
