# SPDX-License-Identifier: Apache-2.0
"""Stages partials in the database, merges them into the stored partials of their groups, reads them and removes them.
Merging is one statement, the same on PostgreSQL and SQLite: counts are added, sums are concatenated (the exact sum is
computed when they are read), and oldest and latest readings are compared as in `earlier` and `later`. A long
concatenation is replaced by the few floats of its exact sum, in the same transaction. Nothing is rounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from monasca_common.models.readings import exact_sum, sums_of, sums_text
from monasca_common.pipeline.aggregate.partials import Partial, PartialKey, group_of_text
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.spark.staging import StagedAttempts, spaces
from monasca_common.pipeline.windows import period_start_ms
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.tables import aggregate_period, aggregate_staging, aggregate_usage

_KEY = ("job", "specification", "window_start", "group_id")
_READING = ("timestamp", "partition", "offset", "value")  # the fields of `Reading`, in its order
_TOTALS = ("record_count", "sums", "least", "greatest")
_COLUMNS = (*_TOTALS, *(f"{end}_{name}" for end in ("oldest", "latest") for name in _READING))
#: The columns of a staged row, in the order of `staged_row`.
STAGED = ("specification", "window_start", "group_id", "group_values", *_COLUMNS)
#: A sum of more floats than this is rewritten; in practice, an exact sum has one to three.
MOST_FLOATS = 32
_SUMS_AT_ONCE = 1000
_READ_ROWS = 2_000
_EVERY_MS = 3_600_000


def staged_row(specification: str, window_ms: int, group: str, partial: Partial) -> tuple[Any, ...]:
    """Return a row for the staging table. ``group``: the text that `group_text` returns."""
    count, sums, *rest = partial.as_row()
    group_id = hashlib.sha256(group.encode()).digest()[:16]
    return (specification, window_ms, group_id, group, count, sums_text(sums), *rest)  # type: ignore[arg-type]


def merge(connection: sa.Connection, job: str, staged: StagedAttempts) -> None:
    """Merge the staged partials into the stored partials. Each key is staged once."""
    usage = aggregate_usage
    columns = [aggregate_staging.c[name] for name in STAGED]
    source = sa.select(sa.literal(job).label("job"), *columns).where(*staged.within(aggregate_staging))
    adding = schema.insert(connection, usage).from_select(["job", *STAGED], source)
    merging = adding.on_conflict_do_update(index_elements=list(_KEY), set_=_sum_of(usage.c, adding.excluded))
    connection.execute(merging)
    _shorten(connection, job, staged)


def _shorten(connection: sa.Connection, job: str, staged: StagedAttempts) -> None:
    """Rewrite long sums of the groups that were just merged as their exact sums."""
    usage, staging = aggregate_usage.c, aggregate_staging.c
    same = [usage[name] == staging[name] for name in _KEY[1:]]
    long = sa.select(*(usage[name] for name in _KEY[1:]), usage.sums).join(aggregate_staging, sa.and_(*same))
    is_long = spaces(usage.sums) >= MOST_FLOATS
    found = connection.execute(long.where(*staged.within(aggregate_staging), usage.job == job, is_long)).all()
    own = (usage[name] == sa.bindparam(f"of_{name}") for name in _KEY[1:])
    written = aggregate_usage.update().where(usage.job == job, *own).values(sums=sa.bindparam("exact"))
    for start in range(0, len(found), _SUMS_AT_ONCE):
        connection.execute(
            written,
            [
                {f"of_{name}": value for name, value in zip(_KEY[1:], key, strict=True)}
                | {"exact": sums_text(exact_sum(sums_of(sums)))}
                for *key, sums in found[start : start + _SUMS_AT_ONCE]
            ],
        )


def staged_windows(connection: sa.Connection, staged: StagedAttempts) -> dict[tuple[str, int], int]:
    """Return the number of rows staged for each (specification, window)."""
    window = (aggregate_staging.c.specification, aggregate_staging.c.window_start)
    query = sa.select(*window, sa.func.count()).where(*staged.within(aggregate_staging)).group_by(*window)
    return {(specification, window_ms): count for specification, window_ms, count in connection.execute(query)}


def known_windows(
    connection: sa.Connection, job: str, specifications: Iterable[str], from_ms: int, to_ms: int
) -> set[tuple[str, int]]:
    """Return the (specification, window) pairs with stored partials whose window starts in [from_ms, to_ms)."""
    columns = (aggregate_usage.c.specification, aggregate_usage.c.window_start)
    where = _within(job, specifications, from_ms, to_ms)
    query = sa.select(*columns).where(*where).distinct()
    return {(specification, window_ms) for specification, window_ms in connection.execute(query)}


def remove(connection: sa.Connection, job: str, specifications: Iterable[str], from_ms: int, to_ms: int) -> None:
    """Remove the stored windows of these specifications that start in [from_ms, to_ms)."""
    connection.execute(aggregate_usage.delete().where(*_within(job, specifications, from_ms, to_ms)))


def read(
    connection: sa.Connection,
    job: str,
    specification: str,
    from_ms: int,
    to_ms: int,
    *,
    ordered_by: Sequence[int] = (),
) -> Iterator[tuple[PartialKey, Partial]]:
    """Yield the stored partials of one specification whose windows start in [from_ms, to_ms), read in portions.

    ``ordered_by``: the positions of the group's columns by which the partials are ordered.
    """
    usage = aggregate_usage.c
    where = _within(job, [specification], from_ms, to_ms)
    columns = [usage.window_start, usage.group_values, *(usage[name] for name in _COLUMNS)]
    order = [_group_column(connection, position) for position in ordered_by]
    query = sa.select(*columns).where(*where).order_by(*order)
    for window_ms, group, count, sums, *rest in connection.execute(query, execution_options={"yield_per": _READ_ROWS}):
        key = PartialKey(specification, window_ms, group_of_text(group))
        yield key, Partial.of_row((count, sums_of(sums), *rest))


def _group_column(connection: sa.Connection, position: int) -> sa.ColumnElement[str]:
    """Return one value of the group, which is a JSON array. Values are ordered by bytes, which is faster than ordering
    by locale."""
    group = aggregate_usage.c.group_values
    if connection.dialect.name == "postgresql":
        text: sa.ColumnElement[str] = sa.cast(group, postgresql.JSON)[position].astext
        return text.collate("C")
    return sa.func.json_extract(group, f"$[{position}]")


def _within(job: str, specifications: Iterable[str], from_ms: int, to_ms: int) -> tuple[sa.ColumnElement[bool], ...]:
    usage = aggregate_usage.c
    return (
        usage.job == job,
        usage.specification.in_(sorted(specifications)),
        usage.window_start >= from_ms,
        usage.window_start < to_ms,
    )


def _sum_of(known: Any, added: Any) -> dict[str, Any]:
    """Return the new value of each column of a stored group."""
    earlier = sa.or_(
        added.oldest_timestamp < known.oldest_timestamp,
        sa.and_(added.oldest_timestamp == known.oldest_timestamp, _place(added, "oldest") > _place(known, "oldest")),
    )
    later = sa.or_(
        added.latest_timestamp > known.latest_timestamp,
        sa.and_(added.latest_timestamp == known.latest_timestamp, _place(added, "latest") > _place(known, "latest")),
    )
    merged = {
        "record_count": known.record_count + added.record_count,
        "sums": known.sums + " " + added.sums,
        "least": _choose(added.least < known.least, known, added, "least"),
        "greatest": _choose(added.greatest > known.greatest, known, added, "greatest"),
    }
    for end, is_added in (("oldest", earlier), ("latest", later)):
        merged |= {f"{end}_{name}": _choose(is_added, known, added, f"{end}_{name}") for name in _READING}
    return merged


def _place(columns: Any, end: str) -> sa.Tuple:
    return sa.tuple_(columns[f"{end}_partition"], columns[f"{end}_offset"])


def _choose(is_added: sa.ColumnElement[bool], known: Any, added: Any, name: str) -> sa.ColumnElement[Any]:
    return sa.case((is_added, added[name]), else_=known[name])


class Retention:
    """Removes the stored partials of days (UTC) that are older than the retention of one job. A period and its windows
    are in one day and are removed together, because windows without any period would not be found."""

    def __init__(self, offset_store: OffsetStore, job: str, retention_ms: int) -> None:
        self._offset_store = offset_store
        self._job = job
        # Keep one more day for batches and backfills that begin within the retention.
        self._kept_ms = retention_ms + DAY_MS
        self._applied_ms = 0

    def apply(self, now_ms: int) -> int:
        """Remove old partials, at most once an hour (failed calls do not count). Return the number of removed rows."""
        if abs(now_ms - self._applied_ms) < _EVERY_MS:
            return 0
        oldest_ms = period_start_ms("daily", now_ms - self._kept_ms)
        period, usage = aggregate_period.c, aggregate_usage.c
        removed = 0
        with self._offset_store.writing() as connection:
            specifications = connection.scalars(
                sa.select(period.specification).where(period.job == self._job).distinct()
            )
            # Delete by specification, because the primary key begins with it.
            for specification in specifications.all():
                old_usage = (usage.job == self._job, usage.specification == specification)
                old_period = (period.job == self._job, period.specification == specification)
                windows = aggregate_usage.delete().where(*old_usage, usage.window_start < oldest_ms)
                removed += connection.execute(windows).rowcount
                connection.execute(aggregate_period.delete().where(*old_period, period.period_start < oldest_ms))
        self._applied_ms = now_ms
        return removed
