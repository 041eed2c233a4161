# SPDX-License-Identifier: Apache-2.0
"""Which alarms a definition has: its series, by their values of ``match_by``, join alarms or make new ones. Pure.

A series joins every alarm whose values agree with its own wherever both have one. If none does, it makes one, which
exists once every sub-expression has a series in it. The result does not depend on the order within a batch: those with
the most values come first, so a series of a host joins the alarms of its devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

Values = tuple[str, ...]
"""In the order of ``match_by``; empty where there is none."""
_Positions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AlarmPart:
    """The windows of ``values`` of the sub-expression belong to the alarm of ``alarm_values``."""

    alarm_values: Values
    sub_expression_id: str
    values: Values


@dataclass(frozen=True, slots=True)
class Joined:
    """``alarms``: the new ones. ``parts``: all of the new ones, and those that are new in known ones."""

    alarms: tuple[Values, ...]
    parts: tuple[AlarmPart, ...]


def join(
    known_alarms: Iterable[Values],
    sub_expression_ids: Sequence[str],
    known: Mapping[str, AbstractSet[Values]],
    new: Mapping[str, AbstractSet[Values]],
) -> Joined:
    """``known``, ``new``: the values that series of each sub-expression have had before, and have for the first time.

    Raises nothing: a sub-expression that is missing in either has none.
    """
    alarms, made = _ByValues(known_alarms), _ByValues(())
    every = {each: known.get(each, frozenset()) | new.get(each, frozenset()) for each in sub_expression_ids}
    for values in sorted(set().union(*every.values()), key=lambda each: (-len(_present(each)), each)):
        if not any(True for _ in alarms.agreeing(values)) and not any(True for _ in made.agreeing(values)):
            made.add(values)
    of_made = _parts(made, every)
    complete = {
        values
        for values, parts in of_made.items()
        if len({part.sub_expression_id for part in parts}) == len(set(sub_expression_ids))
    }
    parts = [part for values in complete for part in of_made[values]]
    parts += [part for added in _parts(alarms, new).values() for part in added]
    order = sorted(parts, key=lambda part: (part.alarm_values, part.sub_expression_id, part.values))
    return Joined(tuple(sorted(complete)), tuple(order))


def _parts(alarms: _ByValues, series: Mapping[str, AbstractSet[Values]]) -> dict[Values, list[AlarmPart]]:
    found: dict[Values, list[AlarmPart]] = defaultdict(list)
    for sub_expression_id, each_values in series.items():
        for values in each_values:
            for alarm in alarms.agreeing(values):
                found[alarm].append(AlarmPart(alarm, sub_expression_id, values))
    return found


def _present(values: Values) -> _Positions:
    return tuple(position for position, value in enumerate(values) if value)


class _ByValues:
    """Finds the alarms that agree with a series without comparing it with all: by the positions that an alarm has
    values at, and the values at those of them that the series has too."""

    def __init__(self, alarms: Iterable[Values]) -> None:
        self._of_positions: dict[_Positions, list[Values]] = defaultdict(list)
        self._tables: dict[tuple[_Positions, _Positions], dict[Values, list[Values]]] = {}
        for values in alarms:
            self._of_positions[_present(values)].append(values)

    def add(self, values: Values) -> None:
        positions = _present(values)
        self._of_positions[positions].append(values)
        for (of, common), table in self._tables.items():
            if of == positions:
                table.setdefault(_projected(values, common), []).append(values)

    def agreeing(self, values: Values) -> Iterator[Values]:
        here = set(_present(values))
        for positions in self._of_positions:
            common = tuple(position for position in positions if position in here)
            yield from self._table(positions, common).get(_projected(values, common), ())

    def _table(self, positions: _Positions, common: _Positions) -> dict[Values, list[Values]]:
        found = self._tables.get((positions, common))
        if found is None:
            found = self._tables[positions, common] = {}
            for values in self._of_positions[positions]:
                found.setdefault(_projected(values, common), []).append(values)
        return found


def _projected(values: Values, positions: _Positions) -> Values:
    return tuple(values[position] for position in positions)
