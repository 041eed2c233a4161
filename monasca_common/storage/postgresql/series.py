# SPDX-License-Identifier: Apache-2.0
"""Removes series without measurements while writers cache existing series.

No measurement is committed without its series. A transaction that writes measurements holds a shared lock until it
ends, and reads the generation once it has the lock. Pruning holds the same lock exclusively while it removes series and
raises the generation. So a cached series either still exists or belongs to an older generation; in this case the writer
clears its cache and inserts the series again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from psycopg import errors

from monasca_common.kafka.failpoints import fail_point
from monasca_common.storage.base import Pruned
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.postgresql.connection import translated
from monasca_common.storage.sql.bounded import BoundedConnection

#: The maximum number of series that one statement checks, and removes while writers wait.
SERIES_A_STEP = 2000
_FIRST_WAIT_SECONDS = 0.5

# The class of an advisory lock; it differs from the classes of partitions.
_LOCK = b"(%d, 0)" % 0x6D6F6E03
HOLD = b"SELECT pg_advisory_xact_lock_shared" + _LOCK
_HOLD_ALONE = b"SELECT pg_advisory_xact_lock" + _LOCK
SELECT_GENERATION = b"SELECT generation FROM series_generation"
_RAISE_GENERATION = b"UPDATE series_generation SET generation = generation + 1"
_CHECK = b"""
    SELECT id, NOT EXISTS (SELECT 1 FROM measurements WHERE series_id = checked.id)
    FROM (SELECT id FROM series WHERE id > %s ORDER BY id LIMIT %s) AS checked ORDER BY id
"""
_DELETE = b"""
    DELETE FROM series WHERE id = ANY (%s)
    AND NOT EXISTS (SELECT 1 FROM measurements WHERE series_id = series.id)
"""


def hold(connection: BoundedConnection) -> int:
    """Prevent the removal of series until this transaction ends. Return their generation."""
    fail_point("storage.before_series")
    connection.execute(HOLD)
    # This is a separate statement, because the statement that waits for the lock sees the state before its wait.
    row = connection.execute(SELECT_GENERATION).fetchone()
    if row is None:
        raise StorageUnavailable("PostgreSQL: the table series_generation is empty: restore its row, (1, 0)")
    return int(row[0])


def prune(give: Callable[[float], BoundedConnection], timeout_seconds: float) -> Iterator[Pruned]:
    """Remove the series without a measurement. ``give`` sets the time-out of a step. Raises `StorageUnavailable`."""
    after = b""
    while True:
        with translated():
            checked = give(timeout_seconds).execute(_CHECK, [after, SERIES_A_STEP], binary=True).fetchall()
        if not checked:
            return
        after = checked[-1][0]
        dead = [series_id for series_id, is_dead in checked if is_dead]
        if not dead:
            continue
        began = time.monotonic()
        removed = _remove(give, timeout_seconds, dead)
        if removed:
            yield Pruned("series", removed, "rows")
            time.sleep(time.monotonic() - began)  # let writers proceed for the time that they had to wait


def _remove(give: Callable[[float], BoundedConnection], timeout_seconds: float, dead: Sequence[bytes]) -> int:
    """Remove the series in ``dead`` that still have no measurement. New writers queue while this transaction waits for
    the lock. Therefore the first wait is short; each further wait is twice as long, within ``timeout_seconds``."""
    deadline = time.monotonic() + timeout_seconds
    wait_seconds = min(_FIRST_WAIT_SECONDS, timeout_seconds / 4)
    with translated():
        while True:
            try:
                return _attempt(give(timeout_seconds), wait_seconds, dead)
            except errors.LockNotAvailable as error:
                if time.monotonic() + 3 * wait_seconds > deadline:
                    raise StorageUnavailable(
                        f"PostgreSQL: series could not be removed, because writes continued for {timeout_seconds:g} s: "
                        "prune again"
                    ) from error
            time.sleep(wait_seconds)  # release the lock, so that waiting writers can proceed
            wait_seconds *= 2


def _attempt(connection: BoundedConnection, wait_seconds: float, dead: Sequence[bytes]) -> int:
    with connection.transaction():
        connection.execute(b"SELECT set_config('lock_timeout', %s, true)", [f"{wait_seconds * 1000:.0f}ms"])
        connection.execute(_HOLD_ALONE)
        fail_point("prune.series_held")
        removed = connection.execute(_DELETE, [list(dead)]).rowcount
        connection.execute(_RAISE_GENERATION)
        fail_point("prune.series_removed")
    return removed
