# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an envelope or a posted body: every violation, each with its place and its rule.

::

    ValueError
    └── InvalidEnvelope     breaks at least one rule (`violations` lists each)
        └── NotJson         is not JSON at all, so that nothing else can be said of it
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PLAIN_KEY = re.compile(r"[\w-]{1,64}", re.ASCII)
_LONGEST_KEY_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Violation:
    """``where``: like ``[3].dimensions.host``, empty for the whole. ``rule``: what is asked of it.

    Neither quotes a value, and ``where`` shows keys as plain ASCII of bounded length. ``too_large``: its size alone
    is wrong, which HTTP has a status of its own for.
    """

    where: str
    rule: str
    too_large: bool = False

    def __str__(self) -> str:
        return f"{self.where} {self.rule}" if self.where else self.rule

    def within(self, place: str) -> Violation:
        """The same violation, seen from outside of ``place``."""
        return Violation(joined(place, self.where), self.rule, self.too_large)


class InvalidEnvelope(ValueError):
    """Breaks the rules listed in ``violations``; sending it again as it is can never help."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        first = str(self.violations[0]) if self.violations else "invalid"
        more = len(self.violations) - 1
        super().__init__(first + (f" (and {more} more)" if more > 0 else ""))


class NotJson(InvalidEnvelope):
    """No JSON at all; its one violation has an empty ``where``."""

    def __init__(self, reason: str) -> None:
        super().__init__([Violation("", reason)])


def joined(place: str, inner: str) -> str:
    """``[3]`` and ``name`` make ``[3].name``; ``logs`` and ``[0]`` make ``logs[0]``."""
    if place and inner and not inner.startswith("["):
        return f"{place}.{inner}"
    return place + inner


def key_place(key: str) -> str:
    """A key as part of a ``where``: strangers choose keys, and logs and terminals show them."""
    if _PLAIN_KEY.fullmatch(key):
        return key
    shown = ascii(key[:_LONGEST_KEY_SHOWN])
    return f"[{shown}…]" if len(key) > _LONGEST_KEY_SHOWN else f"[{shown}]"
