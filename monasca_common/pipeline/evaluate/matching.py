# SPDX-License-Identifier: Apache-2.0
"""Finds the sub-expressions that a series belongs to, without comparing it with every definition. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from monasca_common.alarms.expression import SubExpression
from monasca_common.models import json_text
from monasca_common.models.series import Series

_KEY_BYTES = 16
_Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ActiveSubExpression:
    """A sub-expression with what matching needs of its definition. ``created_ms``: the definition's. ``windows``: the
    generation of its windows."""

    id: str
    windows: int
    tenant: str
    match_by: tuple[str, ...]
    created_ms: int
    expression: SubExpression


@dataclass(frozen=True, slots=True)
class MatchTarget:
    """Whose window a measurement belongs to. ``values``: those of ``match_by``, empty where the series has none."""

    sub_expression: ActiveSubExpression
    values: tuple[str, ...]
    key: bytes


def match_key(values: Sequence[str]) -> bytes:
    return hashlib.blake2b(json_text.write(list(values)), digest_size=_KEY_BYTES).digest()


@dataclass(slots=True)
class _Candidates:
    """The sub-expressions of one tenant and name. ``by_pair``: those with dimensions, each by one of them."""

    without_dimensions: list[ActiveSubExpression] = field(default_factory=list)
    by_pair: dict[_Pair, list[ActiveSubExpression]] = field(default_factory=lambda: defaultdict(list))


class SubExpressionIndex:
    """Each sub-expression is found by that of its dimensions that the fewest others name: so a series is compared with
    few, even if thousands of definitions have its name."""

    def __init__(self, active: Iterable[ActiveSubExpression]) -> None:
        self._candidates: dict[tuple[str, str], _Candidates] = {}
        named: dict[tuple[str, str], list[ActiveSubExpression]] = defaultdict(list)
        for each in active:
            named[each.tenant, each.expression.metric_name].append(each)
        for name, found in named.items():
            self._candidates[name] = _candidates(found)

    def targets(self, series: Series) -> tuple[MatchTarget, ...]:
        return tuple(self._targets(series))

    def _targets(self, series: Series) -> Iterator[MatchTarget]:
        candidates = self._candidates.get((series.tenant, series.name))
        if candidates is None:
            return
        for each in self._belonging(candidates, series):
            values = tuple(series.dimensions.get(key, "") for key in each.match_by)
            if any(values) or not each.match_by:
                yield MatchTarget(each, values, match_key(values))

    @staticmethod
    def _belonging(candidates: _Candidates, series: Series) -> Iterator[ActiveSubExpression]:
        yield from candidates.without_dimensions
        dimensions = series.dimensions
        for pair in dimensions.items():
            for each in candidates.by_pair.get(pair, ()):
                if all(dimensions.get(key) == value for key, value in each.expression.dimensions):
                    yield each


def _candidates(active: Sequence[ActiveSubExpression]) -> _Candidates:
    made = _Candidates()
    named = Counter(pair for each in active for pair in each.expression.dimensions)
    for each in active:
        if each.expression.dimensions:
            rarest = min(each.expression.dimensions, key=lambda pair: (named[pair], pair))
            made.by_pair[rarest].append(each)
        else:
            made.without_dimensions.append(each)
    return made
