# SPDX-License-Identifier: Apache-2.0
"""``/v2.0/metrics/measurements``: measurements; ``/v2.0/metrics/statistics``: their statistics per period.

An element is one series or several merged series. Its id depends only on the tenant, region, name and dimensions, and
elements are sorted by id. A page can therefore continue after ``<id>_<time>`` even if series were added or removed
since the previous page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import falcon

from monasca_common.api import paging
from monasca_common.api.paging import encode
from monasca_common.api.problems import conflict, unprocessable
from monasca_common.api.query import EVERY_SERIES, LATEST_MS, Cursor, Query, RowsQuery, iso
from monasca_common.models.numbers import value_text
from monasca_common.models.series import series_id
from monasca_common.storage.reader import PageOf, Point, Position
from monasca_common.storage.sql.reader import SqlReader

_END = b"]}"


def add_routes(app: falcon.App[Any, Any], reader: SqlReader) -> None:
    app.add_route("/v2.0/metrics/measurements", Measurements(reader))
    app.add_route("/v2.0/metrics/statistics", Statistics(reader))


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a response. ``series_ids``: the series merged into it. ``head``: its JSON up to the first row."""

    id: str
    series_ids: tuple[bytes, ...]
    head: bytes


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements that fit on a page, sorted by id. ``more``: whether further elements follow."""

    shown: Sequence[Element]
    more: bool = False


class ElementRow(NamedTuple):
    """A row. ``element``: the index of its element. ``series_id``: distinguishes rows of merged series."""

    element: int
    time_ms: int
    columns: Sequence[Any]
    series_id: bytes | None = None


class _RowPage:
    def __init__(self, reader: SqlReader) -> None:
        self._reader = reader

    def _elements(self, query: RowsQuery, columns: Sequence[str], field: str) -> Elements:
        """Return the elements with rows in the time range. Raises `Problem`: 409, or 422 for too many series."""
        if EVERY_SERIES in query.group_by or not (query.merge or query.group_by):
            return self._each(query, columns, field)
        return self._grouped(query, columns, field)

    def _each(self, query: RowsQuery, columns: Sequence[str], field: str) -> Elements:
        """Return one element per series: the series at the cursor, and the following series that fit on a page."""
        page = PageOf(query.limit + 2, _before(query.cursor)) if query.group_by else PageOf(2)
        shown: list[Element] = []
        left = paging.MAX_ANSWER_BYTES
        with contextlib.closing(self._reader.iter_series(query.which, page)) as found:
            for series in found:
                if shown and not query.group_by:
                    raise conflict(
                        f"several series have the name {query.name!r}: restrict dimensions to one, or add "
                        "merge_metrics=true to merge them, or group_by=* to return each"
                    )
                if len(shown) > query.limit or left < 0:
                    return Elements(shown, more=True)
                one = _element(series.id.hex(), query.name, series.dimensions, (series.id,), columns, field)
                left -= len(one.head) if shown else 0
                shown.append(one)
        return Elements(_resumed(shown, query.cursor))

    def _grouped(self, query: RowsQuery, columns: Sequence[str], field: str) -> Elements:
        """Return all series as one element, or one element for each combination of values of the dimensions in
        ``group_by``."""
        members: dict[tuple[tuple[str, str], ...], list[bytes]] = {}
        left = paging.MAX_ANSWER_BYTES
        with contextlib.closing(self._reader.iter_series(query.which, PageOf(paging.PAGE_LIMIT + 1))) as found:
            for count, series in enumerate(found, 1):
                # Series without the dimension form one group.
                shared = tuple(
                    (key, series.dimensions[key]) for key in sorted(query.group_by) if key in series.dimensions
                )
                if shared not in members:
                    left -= len(encode(shared))
                if count > paging.PAGE_LIMIT or left < 0:
                    raise unprocessable(
                        f"the request selects more than {paging.PAGE_LIMIT} series, or {paging.MAX_ANSWER_BYTES} bytes "
                        "of dimensions: restrict it by dimensions"
                    )
                members.setdefault(shared, []).append(series.id)
        shown = [_group(query, dict(shared), ids, columns, field) for shared, ids in members.items()]
        return Elements(_resumed(sorted(shown, key=lambda element: element.id), query.cursor))

    def _answer(
        self,
        request: falcon.Request,
        response: falcon.Response,
        query: RowsQuery,
        elements: Elements,
        rows: Iterable[ElementRow],
    ) -> None:
        """Send rows up to the limits of a response, with a link to the next page."""
        parts: list[bytes] = []
        count, left, current = 0, paging.MAX_ANSWER_BYTES, -1
        last: Cursor | None = None
        for number, time_ms, columns, series in rows:
            element, row = elements.shown[number], encode(columns)
            size = len(row) + 1 + (len(element.head) + len(_END) + 1 if number != current else 0)
            left -= size
            if left < 0 and last is None:
                raise paging.too_large(size, str(_after_all(element, query)))
            if left < 0 or count == query.limit:
                break
            if number != current:
                parts += [_END, b","] if parts else []
                parts.append(element.head)
            else:
                parts.append(b",")
            parts.append(row)
            count, current = count + 1, number
            last = Cursor(time_ms, element.id, series, query.since_ms)
        else:
            last = _after_all(elements.shown[-1], query) if elements.more else None
        if parts:
            parts.append(_END)
        paging.answer_elements(request, response, [b"".join(parts)], None if last is None else str(last))


class Measurements(_RowPage):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        asked = Query.of(request)
        query, only_finite = asked.measurements().resumed(), not asked.flag("non_finite")
        cursor = query.cursor
        if cursor is not None and cursor.element_id is None:
            query = query.since(max(query.span.start_ms, cursor.time_ms + 1))
        elements = self._elements(query, ["timestamp", "value", "value_meta"], "measurements")
        after = Position(cursor.time_ms, cursor.series_id) if cursor and _is_first(elements, cursor) else None
        groups = [element.series_ids for element in elements.shown]
        with contextlib.closing(
            self._reader.iter_measurements(
                groups, query.span, limit=query.limit + 1, after=after, only_finite=only_finite
            )
        ) as points:
            rows = (_measurement_row(elements.shown[point.group], point) for point in points)
            self._answer(request, response, query, elements, rows)


class Statistics(_RowPage):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        statistics = Query.of(request).statistics()
        query, cursor, period_ms = statistics.rows.resumed(), statistics.rows.cursor, statistics.period_ms
        if cursor is not None and cursor.element_id is None:
            query = query.since(_first_window_after(cursor.time_ms, query.span.start_ms, period_ms))
        elements = self._elements(query, ["timestamp", *statistics.functions], "statistics")
        after_ms = cursor.time_ms if cursor and _is_first(elements, cursor) else None
        groups = [element.series_ids for element in elements.shown]
        found = self._reader.statistics(
            groups, statistics.functions, query.span, period_ms=period_ms, limit=query.limit + 1, after_ms=after_ms
        )
        rows = (ElementRow(each.group, each.start_ms, [iso(each.start_ms), *each.values]) for each in found)
        self._answer(request, response, query, elements, rows)


def _first_window_after(time_ms: int, start_ms: int, period_ms: int) -> int:
    """Return the start of the first window after ``time_ms``. Windows are aligned to ``start_ms``."""
    return start_ms if time_ms < start_ms else start_ms + ((time_ms - start_ms) // period_ms + 1) * period_ms


def _measurement_row(element: Element, point: Point) -> ElementRow:
    # Rows of merged series may have the same time and be on different pages; only the series distinguishes them.
    series = point.series_id if len(element.series_ids) > 1 else None
    columns = [iso(point.time_ms), value_text(point.value) or point.value, point.value_meta]
    return ElementRow(point.group, point.time_ms, columns, series)


def _element(
    id_: str, name: str, dimensions: Mapping[str, str], ids: tuple[bytes, ...], columns: Sequence[str], field: str
) -> Element:
    """Return an element. ``dimensions``: the dimensions that all its series share."""
    members = encode({"id": id_, "name": name, "dimensions": dimensions, "columns": columns})
    return Element(id_, ids, b'%b,"%b":[' % (members[:-1], field.encode()))


def _group(
    query: RowsQuery, dimensions: Mapping[str, str], ids: Sequence[bytes], columns: Sequence[str], field: str
) -> Element:
    """Return merged series as one element, which has the id of a series without a region. The series are sorted by id,
    to order rows with the same time."""
    identity = series_id(query.which.tenant, "", query.name, dimensions).hex()
    return _element(identity, query.name, dimensions, tuple(sorted(ids)), columns, field)


def _resumed(elements: Sequence[Element], cursor: Cursor | None) -> list[Element]:
    """Return the elements that can have rows after the cursor."""
    if cursor is None or cursor.element_id is None:
        return list(elements)
    return [element for element in elements if element.id >= cursor.element_id]


def _is_first(elements: Elements, cursor: Cursor) -> bool:
    return bool(elements.shown) and elements.shown[0].id == cursor.element_id


def _before(cursor: Cursor | None) -> str | None:
    """Return the id after which to read series; the series at the cursor is included if it can have more rows."""
    if cursor is None or cursor.element_id is None:
        return None
    if cursor.time_ms == LATEST_MS:
        return cursor.element_id
    number = int(cursor.element_id, 16)
    return f"{number - 1:032x}" if number else None


def _after_all(element: Element, query: RowsQuery) -> Cursor:
    """Return the cursor after the last row of an element."""
    return Cursor(LATEST_MS, element.id, None, query.since_ms)
