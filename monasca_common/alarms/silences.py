# SPDX-License-Identifier: Apache-2.0
"""Silences: their rules and their table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase, Slice, delete_one, new_id, of_tenant, only_row
from monasca_common.alarms.errors import refuse
from monasca_common.models.errors import escaped_key, joined
from monasca_common.models.limits import MOST_DIMENSIONS, STORED, TENANT, TextRule, too_many_dimensions
from monasca_common.storage.sql import tables

AUTHOR = TextRule()
COMMENT = TextRule(least=0, most=1000)
LONGEST_MS = 366 * 86_400_000
# The limit for active and future silences, because each change of an alarm is compared with all of them.
MOST_OF_A_TENANT = 1000

_WHAT = "silence"
_SILENCE, _HELD = tables.silence, tables.notification_deferred
_NAMES = ("id", "tenant", "dimensions", "from_ms", "until_ms", "author", "comment", "created_ms")
_SELECT = sa.select(*(_SILENCE.c[name] for name in _NAMES))
# The statement is built only once, because it is executed for each change of an alarm.
_LASTING = (
    _SELECT.where(_SILENCE.c.tenant == sa.bindparam("of_tenant"))
    .where(_SILENCE.c.from_ms <= sa.bindparam("now_ms"), _SILENCE.c.until_ms > sa.bindparam("now_ms"))
    .order_by(_SILENCE.c.until_ms.desc(), _SILENCE.c.id)
    .limit(MOST_OF_A_TENANT)
)


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence. ``dimensions``: the dimensions of the silenced alarms; empty: all alarms. ``until_ms``: exclusive.
    ``id``: empty until the silence is stored."""

    tenant: str
    dimensions: Mapping[str, str]
    from_ms: int
    until_ms: int
    author: str
    comment: str = ""
    created_ms: int = 0
    id: str = ""

    @property
    def shown(self) -> str:
        """Return the text for the record of a silenced notification."""
        return f"silence {self.id} by {self.author}: {self.comment}"

    def lasts(self, now_ms: int) -> bool:
        return self.from_ms <= now_ms < self.until_ms

    def covers(self, dimensions: Iterable[Mapping[str, str]]) -> bool:
        """Return whether any metric of an alarm has all silenced dimensions. ``dimensions``: those of each metric."""
        return not self.dimensions or any(self.dimensions.items() <= each.items() for each in dimensions)


def _faults(silence: Silence, now_ms: int) -> Iterator[tuple[str, str]]:
    yield from (("tenant", fault) for fault in TENANT.faults(silence.tenant))
    yield from (("author", fault) for fault in AUTHOR.faults(silence.author))
    yield from (("comment", fault) for fault in COMMENT.faults(silence.comment))
    if len(silence.dimensions) > MOST_DIMENSIONS:
        yield "dimensions", too_many_dimensions(len(silence.dimensions), MOST_DIMENSIONS)
        return
    for key, value in silence.dimensions.items():
        place = joined("dimensions", escaped_key(key))
        yield from ((place, f"as a key {fault}") for fault in STORED.key.faults(key))
        yield from ((place, fault) for fault in STORED.value.faults(value))
    if silence.until_ms <= silence.from_ms:
        yield "until", "must be later than from"
    elif silence.until_ms <= now_ms:
        yield "until", "has passed: give a time in the future"
    elif silence.until_ms - silence.from_ms > LONGEST_MS:
        yield "until", f"is more than {LONGEST_MS // 86_400_000} days after from: give an earlier time"
    elif silence.from_ms - now_ms > LONGEST_MS:
        yield "from", f"is more than {LONGEST_MS // 86_400_000} days from now: give an earlier time"


class Silences:
    """The silences in the database. Each call accesses only those of its tenant."""

    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database

    def found(self, tenant: str, part: Slice, *, lasting_at_ms: int | None = None) -> list[Silence]:
        """Return silences in order of their start times. ``lasting_at_ms``: return only silences that are active at
        this time."""
        statement = _SELECT.where(_SILENCE.c.tenant == tenant)
        if lasting_at_ms is not None:
            statement = statement.where(_SILENCE.c.from_ms <= lasting_at_ms, _SILENCE.c.until_ms > lasting_at_ms)
        statement = statement.order_by(_SILENCE.c.from_ms, _SILENCE.c.id)
        rows = self._database.rows(statement.limit(part.limit).offset(part.offset))
        return [Silence(**row._asdict()) for row in rows]

    def get(self, tenant: str, silence_id: str) -> Silence:
        """Raises `UnknownId`."""
        rows = self._database.rows(_SELECT.where(*of_tenant(_SILENCE, tenant, silence_id)))
        return Silence(**only_row(rows, _WHAT, silence_id)._asdict())

    def create(self, silence: Silence, now_ms: int) -> Silence:
        """Raises `BrokenRules`."""
        refuse(_faults(silence, now_ms))
        created = replace(silence, id=new_id(), created_ms=now_ms)

        def work(connection: sa.Connection) -> Silence:
            unended = (_SILENCE.c.tenant == created.tenant, _SILENCE.c.until_ms > now_ms)
            if connection.execute(sa.select(sa.func.count()).where(*unended)).scalar_one() >= MOST_OF_A_TENANT:
                fault = f"the tenant has {MOST_OF_A_TENANT} silences that have not ended: delete a silence first"
                refuse([("", fault)])
            connection.execute(_SILENCE.insert().values(asdict(created) | {"dimensions": dict(created.dimensions)}))
            return created

        return self._database.write(work)

    def delete(self, tenant: str, silence_id: str) -> None:
        """End a silence, so that the notifications it suppressed are reconsidered. Raises `UnknownId`."""

        def work(connection: sa.Connection) -> None:
            delete_one(connection, _SILENCE, tenant, silence_id, _WHAT)
            silenced = (_HELD.c.tenant == tenant, _HELD.c.kind == "silenced")
            connection.execute(_HELD.update().where(*silenced).values(due=0))

        self._database.write(work)

    def prune(self, before_ms: int) -> int:
        """Remove silences that ended before the given time, and return their number."""
        statement = _SILENCE.delete().where(_SILENCE.c.until_ms < before_ms)
        return self._database.write(lambda connection: connection.execute(statement).rowcount)


def lasting(connection: sa.Connection, tenant: str, now_ms: int) -> list[Silence]:
    """Return the active silences of the tenant, in descending order of their end times."""
    rows = connection.execute(_LASTING, {"of_tenant": tenant, "now_ms": now_ms})
    return [Silence(**row._asdict()) for row in rows]
