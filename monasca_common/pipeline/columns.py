# SPDX-License-Identifier: Apache-2.0
"""The columns that specifications group, filter and name by: plain ones, or ``dimensions#mount`` into a map."""

from __future__ import annotations

NA = "NA"
"""A column without a value: nobody sent it, or a usage was not grouped by it."""
ALL = "all"
"""A column that a rollup has dropped."""

MAPS = ("dimensions", "meta", "value_meta")
PLAIN = (
    "tenant_id",
    "project_id",
    "user_id",
    "resource_uuid",
    "geolocation",
    "region",
    "zone",
    "host",
    "event_type",
    "metric_id",
)
NAME = "aggregated_metric_name"
PERIOD = "aggregation_period"
CONSTANT = (NAME, PERIOD)
"""The same for all rows of a specification: grouping by them changes nothing."""

_SYNONYMS = {"project_id": "tenant_id"}


def check(column: str, known: tuple[str, ...]) -> str:
    """The column as it is kept; ``known`` are the plain ones allowed. Raises `ValueError`, whose text is the rule.

    A record's project is its tenant, always: so they are one column, whichever a specification writes.
    """
    kind, separator, key = column.partition("#")
    if (separator and kind in MAPS and key) or (not separator and column in known):
        return _SYNONYMS.get(column, column)
    maps = ", ".join(f"{name}#<key>" for name in MAPS)
    raise ValueError(f"is no column that is known here ({column!r}): write one of {', '.join(known)}, or {maps}")


def map_and_key(column: str) -> tuple[str, str]:
    """``("dimensions", "mount")``; the map is empty for a plain column."""
    kind, separator, key = column.partition("#")
    return (kind, key) if separator else ("", column)
