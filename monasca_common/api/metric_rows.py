# SPDX-License-Identifier: Apache-2.0
"""``GET`` of what metrics measured: measurements, and statistics over periods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import falcon

from monasca_common.api import paging
from monasca_common.api.grouping import Element, elements_of, resumed
from monasca_common.api.problems import unprocessable
from monasca_common.api.query import Cursor, Query, RowsQuery, StatisticsQuery, iso
from monasca_common.storage.reader import PageOf, Period, Point, Position, Reader, Span


class _Rows:
    def __init__(self, reader: Reader, page_limit: int) -> None:
        self._reader = reader
        self._page_limit = page_limit

    def _query(self, request: falcon.Request) -> Query:
        return Query(request.query_string, tenant=request.context.tenant, page_limit=self._page_limit)

    def _elements(self, query: RowsQuery) -> list[Element]:
        one_will_do = not query.merge and not query.group_by
        limit = 1 if one_will_do else self._page_limit
        series = self._reader.series(query.which, PageOf(limit + 1))
        if len(series) > limit and not one_will_do:
            raise unprocessable(f"more than {limit} metrics are asked for at once: narrow them by dimensions")
        return resumed(elements_of(series, query), query.cursor)


class Measurements(_Rows):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = self._query(request).measurements()
        elements = self._elements(query)
        span, after = query.span, None
        if (cursor := query.cursor) is not None:
            if cursor.element_id is None:
                span = Span(max(span.start_ms, cursor.time_ms + 1), span.end_ms)
            elif elements and elements[0].id == cursor.element_id:
                after = Position(cursor.time_ms, cursor.series_id)
        groups = [element.series_ids for element in elements]
        points = self._reader.measurements(groups, span, limit=query.limit + 1, after=after)
        shown = points[: query.limit]
        columns = ["timestamp", "value", "value_meta"]
        paging.answer_page(
            request,
            response,
            [
                _shown(query, elements[number], columns, "measurements", map(_measurement_row, rows))
                for number, rows in groupby(shown, attrgetter("group"))
            ],
            _next_measurement(elements, shown[-1]) if len(points) > query.limit else None,
        )


class Statistics(_Rows):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = self._query(request).statistics()
        rows = query.rows
        elements = self._elements(rows)
        span, after_ms = rows.span, None
        if (cursor := rows.cursor) is not None:
            if cursor.element_id is None:
                span = _behind(span, cursor.time_ms, query.period_ms)
            elif elements and elements[0].id == cursor.element_id:
                after_ms = cursor.time_ms
        periods = self._periods(query, elements, span, after_ms)
        shown = periods[: rows.limit]
        columns = ["timestamp", *query.functions]
        paging.answer_page(
            request,
            response,
            [
                _shown(rows, elements[number], columns, "statistics", map(_statistics_row, windows))
                for number, windows in groupby(shown, attrgetter("group"))
            ],
            str(Cursor(shown[-1].start_ms, elements[shown[-1].group].id)) if len(periods) > rows.limit else None,
        )

    def _periods(
        self, query: StatisticsQuery, elements: Sequence[Element], span: Span, after_ms: int | None
    ) -> list[Period]:
        if not elements:
            return []
        return self._reader.statistics(
            [element.series_ids for element in elements],
            query.functions,
            span,
            period_ms=query.period_ms,
            limit=query.rows.limit + 1,
            after_ms=after_ms,
        )


def _behind(span: Span, time_ms: int, period_ms: int) -> Span:
    """Windows begin where they would without an offset: those that begin after ``time_ms`` remain."""
    if time_ms < span.start_ms:
        return span
    windows = (time_ms - span.start_ms) // period_ms + 1
    return Span(span.start_ms + windows * period_ms, span.end_ms)


def _next_measurement(elements: Sequence[Element], last: Point) -> str:
    element = elements[last.group]
    # Merged series may have rows of one time on both sides of a page's end: only the series tells them apart.
    return str(Cursor(last.time_ms, element.id, last.series_id if len(element.series_ids) > 1 else None))


def _shown(
    query: RowsQuery, element: Element, columns: Sequence[str], field: str, rows: Iterable[Sequence[Any]]
) -> dict[str, Any]:
    return {
        "id": element.id,
        "name": query.name,
        "dimensions": element.dimensions,
        "columns": columns,
        field: list(rows),
    }


def _measurement_row(point: Point) -> list[Any]:
    return [iso(point.time_ms), point.value, point.value_meta]


def _statistics_row(period: Period) -> list[Any]:
    return [iso(period.start_ms), *period.values]
