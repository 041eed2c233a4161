# SPDX-License-Identifier: Apache-2.0
"""``GET`` of what metrics there are: metrics, their names, their dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import falcon

from monasca_common.api import paging
from monasca_common.api.query import Query
from monasca_common.storage.reader import PageOf, Reader


class _List:
    def __init__(self, reader: Reader, page_limit: int) -> None:
        self._reader = reader
        self._page_limit = page_limit

    def _query(self, request: falcon.Request) -> Query:
        return Query(request.query_string, tenant=request.context.tenant, page_limit=self._page_limit)

    @staticmethod
    def _answer_names(
        request: falcon.Request, response: falcon.Response, field: str, names: Sequence[str], page: PageOf
    ) -> None:
        shown = names[: page.limit]
        more = len(names) > page.limit
        paging.answer_page(request, response, [{field: name} for name in shown], shown[-1] if more else None)


class Metrics(_List):
    """Its path is also where metrics are posted, so whoever has the posts makes the route of both."""

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        which, page = self._query(request).series()
        series = self._reader.series(which, one_more(page))
        shown = series[: page.limit]
        paging.answer_page(
            request,
            response,
            [{"id": one.id.hex(), "name": one.name, "dimensions": one.dimensions} for one in shown],
            shown[-1].id.hex() if len(series) > page.limit else None,
        )


class MetricNames(_List):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        which, page = self._query(request).names()
        self._answer_names(request, response, "name", self._reader.names(which, one_more(page)), page)


class DimensionNames(_List):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        which, page = self._query(request).names()
        names = self._reader.dimension_names(which, one_more(page))
        self._answer_names(request, response, "dimension_name", names, page)


class DimensionValues(_List):
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        query = self._query(request)
        key = query.dimension_name()
        which, page = query.names()
        values = self._reader.dimension_values(which, key, one_more(page))
        self._answer_names(request, response, "dimension_value", values, page)


def one_more(page: PageOf) -> PageOf:
    """One more than is shown tells whether a page follows."""
    return PageOf(page.limit + 1, page.after)
