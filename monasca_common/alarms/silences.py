# SPDX-License-Identifier: Apache-2.0
"""Silences: whose alarms nobody is notified of for a while, by whom and why. Their rules; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from monasca_common.models.errors import Violation, joined, key_place
from monasca_common.models.limits import MOST_DIMENSIONS, STORED, TENANT, TextRule, too_many_dimensions

AUTHOR = TextRule()
COMMENT = TextRule(least=0, most=1000)
LONGEST_MS = 366 * 86_400_000
SORTS = ("id", "from", "until", "author", "created_at")


@dataclass(frozen=True, slots=True)
class Silence:
    """``dimensions``: of the alarms that it covers; none: of all. It begins at ``from_ms`` and is over at ``until_ms``.
    ``id``: empty until it is stored."""

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
        """In the record of what it silenced."""
        return f"silence {self.id} by {self.author}: {self.comment}"

    def lasts(self, now_ms: int) -> bool:
        return self.from_ms <= now_ms < self.until_ms

    def covers(self, dimensions: Iterable[Mapping[str, str]]) -> bool:
        """Whether one metric of an alarm has every dimension. ``dimensions``: those of each of its metrics."""
        return not self.dimensions or any(self.dimensions.items() <= each.items() for each in dimensions)


def violations(silence: Silence, now_ms: int) -> list[Violation]:
    return [Violation(where, rule) for where, rule in _faults(silence, now_ms)]


def _faults(silence: Silence, now_ms: int) -> Iterator[tuple[str, str]]:
    yield from (("tenant", fault) for fault in TENANT.faults(silence.tenant))
    yield from (("author", fault) for fault in AUTHOR.faults(silence.author))
    yield from (("comment", fault) for fault in COMMENT.faults(silence.comment))
    if len(silence.dimensions) > MOST_DIMENSIONS:
        yield "dimensions", too_many_dimensions(len(silence.dimensions), MOST_DIMENSIONS)
        return
    for key, value in silence.dimensions.items():
        place = joined("dimensions", key_place(key))
        yield from ((place, f"as a key {fault}") for fault in STORED.key.faults(key))
        yield from ((place, fault) for fault in STORED.value.faults(value))
    if silence.until_ms <= silence.from_ms:
        yield "until", "must be later than from"
    elif silence.until_ms <= now_ms:
        yield "until", "has passed: give a time to come"
    elif silence.until_ms - silence.from_ms > LONGEST_MS:
        yield "until", f"is more than {LONGEST_MS // 86_400_000} days after from: give an earlier time"
    elif silence.from_ms - now_ms > LONGEST_MS:
        yield "from", f"is more than {LONGEST_MS // 86_400_000} days from now: give an earlier time"
