# SPDX-License-Identifier: Apache-2.0
"""Errors of an envelope or a posted body: all violations, each with its place and its rule.

::

    ValueError
    └── InvalidEnvelope     breaks at least one rule (`violations` lists each)
        └── Unreadable      is neither JSON nor the expected Avro record or protobuf message; nothing else was checked
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PLAIN_KEY = re.compile(r"[\w-]{1,64}", re.ASCII)
_LONGEST_KEY_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Violation:
    """``where``: a path such as ``[3].dimensions.host``, empty for the whole document. ``rule``: the broken rule.

    Neither quotes a value, and ``where`` contains keys as ASCII text of limited length. ``too_large``: whether the rule
    is a size limit, for which HTTP has a separate status.
    """

    where: str
    rule: str
    too_large: bool = False

    def __str__(self) -> str:
        return f"{self.where} {self.rule}" if self.where else self.rule

    def within(self, place: str) -> Violation:
        """Return the violation with ``place`` prepended to its place."""
        return Violation(joined(place, self.where), self.rule, self.too_large)


class InvalidEnvelope(ValueError):
    """The input breaks the rules listed in ``violations``; a retry cannot succeed."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        first = str(self.violations[0]) if self.violations else "invalid"
        more = len(self.violations) - 1
        super().__init__(first + (f" (and {more} more)" if more > 0 else ""))


class Unreadable(InvalidEnvelope):
    """The input is not JSON, or not the expected record or message; the only violation has an empty ``where``."""

    def __init__(self, reason: str) -> None:
        super().__init__([Violation("", reason)])


def joined(place: str, inner: str) -> str:
    """Join ``[3]`` and ``name`` to ``[3].name``, and ``logs`` and ``[0]`` to ``logs[0]``."""
    if place and inner and not inner.startswith("["):
        return f"{place}.{inner}"
    return place + inner


def escaped_key(key: str) -> str:
    """Return a key as part of a ``where``, escaped because clients choose keys, and logs and terminals show them."""
    if _PLAIN_KEY.fullmatch(key):
        return key
    shown = ascii(key[:_LONGEST_KEY_SHOWN])
    return f"[{shown}…]" if len(key) > _LONGEST_KEY_SHOWN else f"[{shown}]"
