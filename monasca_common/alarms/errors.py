# SPDX-License-Identifier: Apache-2.0
"""Errors of requests about alarms.

::

    AlarmsError
    ├── UnknownId        the tenant has no object with this id
    ├── NameTaken        the tenant has another object with this name
    └── BrokenRules      the request breaks rules (`violations` lists them)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monasca_common.models.errors import Violation


class AlarmsError(Exception):
    """Base of the errors of this package. Errors of the database are raised as `StorageError`."""


class UnknownId(AlarmsError):
    def __init__(self, what: str, unknown: str) -> None:
        super().__init__(f"there is no {what} with the id {unknown[:100]!r}")


class NameTaken(AlarmsError):
    def __init__(self, what: str) -> None:
        super().__init__(f"another {what} has this name: choose another name")


class BrokenRules(AlarmsError):
    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = tuple(violations)


def refuse(faults: Iterable[tuple[str, str]]) -> None:
    """Raise `BrokenRules` if there are faults. Each fault names a field and the rule that it breaks."""
    if violations := [Violation(where, rule) for where, rule in faults]:
        raise BrokenRules(violations)
