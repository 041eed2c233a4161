# SPDX-License-Identifier: Apache-2.0
"""The columns by which specifications group, filter and name: plain columns, or keys of a map such as
``dimensions#mount``."""

from __future__ import annotations

NA = "NA"
"""The value of a column that is missing, or by which a usage is not grouped."""
ALL = "all"
"""The value of a column that a rollup has dropped."""

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
# There is no entry for project_id, because `check` replaces it with tenant_id.
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "tenant_id": (("dimensions", "tenantId"), ("dimensions", "tenant_id"), ("dimensions", "project_id")),
    "resource_uuid": (("dimensions", "instanceId"), ("dimensions", "resource_id")),
    "user_id": (("meta", "userId"),),
    "region": (("meta", "region"),),
    "zone": (("meta", "zone"),),
    "geolocation": (("meta", "geolocation"),),
    "host": (("dimensions", "hostname"), ("value_meta", "host")),
}
"""The (map, key) pairs at which a metric may contain a plain column's value. The first existing pair counts."""

NAME = "aggregated_metric_name"
PERIOD = "aggregation_period"
CONSTANT = (NAME, PERIOD)
"""Columns that are equal in all rows of a specification; grouping by them has no effect."""

BARE = ("namespace", "pod_name", "app", "container_name", "interface", "deployment", "daemon_set")
"""The columns that specifications of monasca-transform list in ``dimension_list`` without their map. No rows are
grouped by them, so they have the value of a column that a rollup has dropped."""

_SYNONYMS = {"project_id": "tenant_id"}


def check(column: str, known: tuple[str, ...]) -> str:
    """Return the canonical name of a column. ``known``: the allowed plain columns. Raises `ValueError`, which states
    the rule. A record's project is always its tenant, so both names refer to one column.
    """
    kind, separator, key = column.partition("#")
    if (separator and kind in MAPS and key) or (not separator and column in known):
        return _SYNONYMS.get(column, column)
    maps = ", ".join(f"{name}#<key>" for name in MAPS)
    raise ValueError(f"is not a known column ({column!r}): write one of {', '.join(known)}, or {maps}")


def map_and_key(column: str) -> tuple[str, str]:
    """Return map and key, such as ``("dimensions", "mount")``. The map is empty for a plain column."""
    kind, separator, key = column.partition("#")
    return (kind, key) if separator else ("", column)
