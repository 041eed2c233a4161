# SPDX-License-Identifier: Apache-2.0
"""Parses the query string of a read into frozen values. No I/O.

Raises `Problem`: 422, or 400 if the end is not after the start. Only the first value of a repeated parameter is used,
except for lists (dimensions, statistics, group_by, sort_by), which are concatenated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import falcon

from monasca_common.alarms.alarm_queries import WhichAlarms
from monasca_common.alarms.database import Slice, Sort
from monasca_common.alarms.definitions import SEVERITIES, STATES, DefinitionFilter
from monasca_common.alarms.sent_notifications import SENT_STATES, WhichNotifications
from monasca_common.api import paging
from monasca_common.api.problems import bad_request, unprocessable
from monasca_common.storage.reader import FUNCTIONS, AlarmFilter, PageOf, SeriesFilter, Span

MAX_NAME_LENGTH = 255
MAX_OFFSET_LENGTH = 1024
MAX_PARAMETERS = 100
# the maximum number of dimension names to filter or group by, which is also the default limit of a metric's dimensions
MAX_KEYS = 100
MAX_VALUES = 1000  # maximum total number of values of these dimensions
MAX_PERIOD_SECONDS = 10 * 365 * 86_400
DEFAULT_PERIOD_SECONDS = 300
EVERY_SERIES = "*"

LATEST_MS = 253_402_300_799_999  # the end of the year 9999

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SERIES_ID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[0-9]{1,10}")
_TRANSITION_ID = re.compile(r"[0-9]{1,17}-(?:[0-9a-f]{2})*")
_LOST_PLUS = re.compile(r"(?<=[0-9]) (?=[0-9]{2}:?[0-9]{2}$)")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: its element (``None`` if the client sent only a time), time and series.

    ``since_ms``: if the offset of the first page was a time, the time from which rows of all elements are read.
    """

    time_ms: int
    element_id: str | None = None
    series_id: bytes | None = None
    since_ms: int | None = None

    def __str__(self) -> str:
        parts = [
            self.element_id,
            iso(self.time_ms),
            self.series_id.hex() if self.series_id else None,
            iso(self.since_ms) if self.since_ms is not None else None,
        ]
        return "_".join(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class RowsQuery:
    """The parameters of measurements and statistics. ``group_by`` overrides ``merge``; ``("*",)`` returns each series
    separately.

    ``since_ms``: see `Cursor`.
    """

    which: SeriesFilter
    name: str
    span: Span
    limit: int
    merge: bool
    group_by: tuple[str, ...]
    cursor: Cursor | None
    since_ms: int | None = None

    def since(self, start_ms: int) -> RowsQuery:
        """Return the query with this start time, which the following pages keep."""
        which, span = replace(self.which, start_ms=start_ms), Span(start_ms, self.span.end_ms)
        return replace(self, which=which, span=span, since_ms=start_ms)

    def resumed(self) -> RowsQuery:
        """Return the query with the start time of its first page, if the offset of that page was a time."""
        since_ms = self.cursor.since_ms if self.cursor is not None else None
        return self if since_ms is None else self.since(max(since_ms, self.span.start_ms))


@dataclass(frozen=True, slots=True)
class StatisticsQuery:
    rows: RowsQuery
    functions: tuple[str, ...]
    period_ms: int


class Query:
    """The parameters of a request. ``text``: the raw query string. ``tenant``: the tenant of the token."""

    def __init__(self, text: str, *, tenant: str) -> None:
        self._tenant = tenant
        try:
            # WSGI decodes the query string as Latin-1, but bytes that are not percent-encoded are UTF-8.
            readable = text.encode("latin-1", "replace").decode("utf-8", "replace")
            pairs = parse_qsl(readable, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        except ValueError:
            raise unprocessable(f"the query has more than {MAX_PARAMETERS} parameters: send fewer") from None
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            if "\0" in value:
                raise unprocessable(f"{name} contains a NUL character: remove it")
            self._values.setdefault(name, []).append(value)

    @classmethod
    def of(cls, request: falcon.Request) -> Query:
        return cls(request.query_string, tenant=request.context.tenant)

    def series(self) -> tuple[SeriesFilter, PageOf]:
        after = self._first("offset")
        if after is not None and not _SERIES_ID.fullmatch(after):
            raise unprocessable("offset is not the id of a metric: use the offset of the next link")
        return self._filter(self._name("name")), PageOf(self.limit(), after)

    def names(self) -> tuple[SeriesFilter, PageOf]:
        """Return the query parameters for listing metric names, dimension names or dimension values."""
        return self._filter(self._name("metric_name")), PageOf(self.limit(), self._first("offset"))

    def measurements(self) -> RowsQuery:
        name, start = self.needed("name"), self._time("start_time")
        if start is None:
            raise unprocessable("start_time is missing: give a time such as 2026-01-31T00:00:00Z")
        which = self._filter(name)
        return RowsQuery(
            which=which,
            name=name,
            span=Span(start, which.end_ms),
            limit=self.limit(),
            merge=self.flag("merge_metrics"),
            group_by=self._group_by(),
            cursor=self._cursor(),
        )

    def statistics(self) -> StatisticsQuery:
        rows = self.measurements()
        functions = tuple(dict.fromkeys(name.lower() for name in self._list("statistics")))
        if not functions or not set(functions) <= set(FUNCTIONS):
            raise unprocessable(f"statistics must be any of {', '.join(FUNCTIONS)}, separated by commas")
        period = self._number("period", DEFAULT_PERIOD_SECONDS)
        if not 1 <= period <= MAX_PERIOD_SECONDS:
            raise unprocessable(f"period is {period}: give seconds, from 1 to {MAX_PERIOD_SECONDS}")
        return StatisticsQuery(rows, functions, period * 1000)

    def alarm_history(self, alarm_id: str | None = None) -> tuple[AlarmFilter, PageOf]:
        start, end = self._times()
        which = AlarmFilter(self._tenant, alarm_id, self._dimensions(), start, end)
        after = self._first("offset")
        if after is not None and not _TRANSITION_ID.fullmatch(after):
            after = f"{max(0, _read_time('offset', after) + 1)}-"
        return which, PageOf(self.limit(), after)

    def alarms(self) -> WhichAlarms:
        return WhichAlarms(
            self._tenant,
            definition_id=self._first("alarm_definition_id"),
            metric_name=self._name("metric_name"),
            dimensions=self._dimensions("metric_dimensions"),
            states=self._any_of("state", STATES),
            severities=self._any_of("severity", SEVERITIES),
            lifecycle_state=self._first("lifecycle_state"),
            link=self._first("link"),
            state_updated_since_ms=self._time("state_updated_start_time"),
        )

    def notifications(self) -> WhichNotifications:
        start, end = self._times()
        return WhichNotifications(
            self._tenant,
            alarm_id=self._first("alarm_id"),
            definition_id=self._first("alarm_definition_id"),
            method_id=self._first("notification_method_id"),
            states=tuple(map(str.lower, self._any_of("state", [state.upper() for state in SENT_STATES]))),
            start_ms=start,
            end_ms=end,
        )

    def groups(self, allowed: Collection[str]) -> tuple[str, ...]:
        """Return the fields by which alarms are counted."""
        group_by = self._group_by()
        if not set(group_by) <= set(allowed):
            raise unprocessable(f"group_by must be any of {', '.join(allowed)}, separated by commas")
        return group_by

    def definitions(self) -> DefinitionFilter:
        return DefinitionFilter(
            self._tenant, self._name("name"), self._dimensions(), self._any_of("severity", SEVERITIES)
        )

    def _any_of(self, name: str, allowed: Collection[str]) -> tuple[str, ...]:
        """Parse alternatives such as ``LOW|high`` to upper case."""
        text = self._first(name)
        values = tuple(text.upper().split("|")) if text else ()
        if not set(values) <= set(allowed):
            raise unprocessable(f"{name} must be any of {', '.join(allowed)}, separated by |")
        return values

    def rows(self) -> Slice:
        """Return the page of a list whose offset is a number of rows."""
        return Slice(self.limit(), self._number("offset", 0))

    def sorts(self, allowed: Collection[str]) -> tuple[Sort, ...]:
        """Parse a sort order such as ``sort_by=name desc,id``."""
        sorts: list[Sort] = []
        for each in self._list("sort_by"):
            field, _, direction = each.partition(" ")
            if field not in allowed or direction.strip().lower() not in ("", "asc", "desc"):
                raise unprocessable(
                    f"sort_by contains {each[:MAX_NAME_LENGTH]!r}: write any of {', '.join(allowed)}, optionally "
                    "followed by asc or desc, separated by commas"
                )
            if field not in (sort.field for sort in sorts):
                sorts.append(Sort(field, descending=direction.strip().lower() == "desc"))
        return tuple(sorts)

    def limit(self) -> int:
        """Return the requested limit, capped at the page limit; clients may send a larger value to get all elements."""
        limit = self._number("limit", paging.PAGE_LIMIT)
        if limit < 1:
            raise unprocessable("limit is 0: it must be at least 1")
        return min(limit, paging.PAGE_LIMIT)

    def _filter(self, name: str | None) -> SeriesFilter:
        start, end = self._times()
        return SeriesFilter(self._tenant, name=name, dimensions=self._dimensions(), start_ms=start, end_ms=end)

    def _first(self, name: str) -> str | None:
        """Return the first value, or ``None`` if it is missing or empty; some clients send empty parameters."""
        value = self._values.get(name, [""])[0]
        if len(value) > MAX_OFFSET_LENGTH:
            raise unprocessable(f"{name} has {len(value)} characters: at most {MAX_OFFSET_LENGTH} are allowed")
        return value or None

    def _name(self, name: str) -> str | None:
        value = self._first(name)
        if value is not None and len(value) > MAX_NAME_LENGTH:
            raise unprocessable(f"{name} has {len(value)} characters: at most {MAX_NAME_LENGTH} are allowed")
        return value

    def needed(self, name: str) -> str:
        value = self._name(name)
        if value is None:
            raise unprocessable(f"{name} is missing: it is required")
        return value

    def _list(self, name: str) -> list[str]:
        return [item for value in self._values.get(name, []) for part in value.split(",") if (item := part.strip())]

    def flag(self, name: str) -> bool:
        return (self._first(name) or "").lower() == "true"

    def _number(self, name: str, default: int) -> int:
        value = self._first(name)
        if value is None:
            return default
        if not _NUMBER.fullmatch(value):
            raise unprocessable(f"{name} is {value!r}: it must be a whole number of at most 10 digits")
        return int(value)

    def _time(self, name: str) -> int | None:
        value = self._first(name)
        return None if value is None else _read_time(name, value)

    def _times(self) -> tuple[int | None, int | None]:
        start, end = self._time("start_time"), self._time("end_time")
        if start is not None and end is not None and end <= start:
            raise bad_request("end_time must be after start_time")
        return start, end

    def _dimensions(self, name: str = "dimensions") -> Mapping[str, tuple[str, ...]]:
        """Parse text such as ``k:v|v2,k3`` to the allowed values of each key; a key without values permits any value.
        Only values may contain colons."""
        dimensions: dict[str, tuple[str, ...]] = {}
        for part in self._list(name):
            key, _, alternatives = part.partition(":")
            values = tuple(value for value in alternatives.split("|") if value)
            if not key or any(len(text) > MAX_NAME_LENGTH for text in (key, *values)):
                raise unprocessable(
                    f"{name} contains {part[:MAX_NAME_LENGTH]!r}: write key:value, key:value|value or key, each of 1 "
                    f"to {MAX_NAME_LENGTH} characters"
                )
            dimensions[key] = values
        _check_count(name, "keys", len(dimensions), MAX_KEYS)
        _check_count(name, "values", sum(map(len, dimensions.values())), MAX_VALUES)
        return dimensions

    def _group_by(self) -> tuple[str, ...]:
        keys = tuple(dict.fromkeys(self._list("group_by")))
        _check_count("group_by", "keys", len(keys), MAX_KEYS)
        return keys

    def _cursor(self) -> Cursor | None:
        value = self._first("offset")
        if value is None:
            return None
        if "_" not in value:
            return Cursor(_read_time("offset", value))
        element_id, time, *more = value.split("_")
        series = more.pop(0) if more and _SERIES_ID.fullmatch(more[0]) else ""
        if not _SERIES_ID.fullmatch(element_id) or len(more) > 1:
            raise unprocessable("offset is neither a time nor the offset of a next link: correct it")
        since_ms = _read_time("offset", more[0]) if more else None
        return Cursor(_read_time("offset", time), element_id, bytes.fromhex(series) or None, since_ms)


def _check_count(name: str, what: str, count: int, most: int) -> None:
    if count > most:
        raise unprocessable(f"{name} has {count} {what}: at most {most} are allowed")


def iso(time_ms: int) -> str:
    """Return the time as ISO 8601, such as ``2026-01-31T23:59:59.123Z``."""
    return (_EPOCH + time_ms * _MILLISECOND).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _read_time(name: str, text: str) -> int:
    """Convert an ISO 8601 time (by default UTC) to ms. A ``+`` that was not percent-encoded arrives as a space."""
    try:
        read = datetime.fromisoformat(_LOST_PLUS.sub("+", text.strip()))
        utc = read.astimezone(UTC) if read.tzinfo else read.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise unprocessable(f"{name} is {text!r}: give a time such as 2026-01-31T23:59:59.123Z") from None
    return (utc - _EPOCH) // _MILLISECOND
