# SPDX-License-Identifier: Apache-2.0
"""Which series make one element of measurements or statistics, and what its id is.

An element's id depends on nothing but what it stands for, and elements are in order of id: so a page can go on
behind ``<id>_<time>`` although series have come or gone since the page before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monasca_common.api.problems import conflict
from monasca_common.api.query import EVERY_SERIES, Cursor, RowsQuery
from monasca_common.models.series import Series, series_id


@dataclass(frozen=True, slots=True)
class Element:
    """``series_ids`` are read as one; ``dimensions`` are those that they are known to share."""

    id: str
    dimensions: Mapping[str, str]
    series_ids: tuple[bytes, ...]


def elements_of(series: Sequence[Series], query: RowsQuery) -> list[Element]:
    """In order of id. Raises `Problem` (409) for several series that nothing says what to do with."""
    if query.group_by and EVERY_SERIES not in query.group_by:
        return _grouped(series, query)
    if query.merge and not query.group_by:
        return [_element(query, {}, series)] if series else []
    if len(series) > 1 and not query.group_by:
        raise conflict(
            f"several metrics are named {query.name!r} here: narrow dimensions down to one, or give "
            "merge_metrics=true for all as one, or group_by=* for each"
        )
    found = (Element(one.id.hex(), one.dimensions, (one.id,)) for one in series)
    return sorted(found, key=lambda element: element.id)


def resumed(elements: Sequence[Element], cursor: Cursor | None) -> list[Element]:
    """Those that a page behind the cursor can still hold; the first one perhaps in part."""
    if cursor is None or cursor.element_id is None:
        return list(elements)
    return [element for element in elements if element.id >= cursor.element_id]


def _grouped(series: Sequence[Series], query: RowsQuery) -> list[Element]:
    members: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    for one in series:
        # A series without the dimension is in the group of those without it.
        shared = tuple((key, one.dimensions[key]) for key in sorted(query.group_by) if key in one.dimensions)
        members.setdefault(shared, []).append(one)
    found = (_element(query, dict(shared), group) for shared, group in members.items())
    return sorted(found, key=lambda element: element.id)


def _element(query: RowsQuery, dimensions: Mapping[str, str], series: Sequence[Series]) -> Element:
    """The id is that of a series of no region; in order of id, so that rows of one time have an order."""
    identity = series_id(query.which.tenant, "", query.name, dimensions).hex()
    return Element(identity, dimensions, tuple(sorted(one.id for one in series)))
