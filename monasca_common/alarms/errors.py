# SPDX-License-Identifier: Apache-2.0
"""Why a request about alarms is refused.

::

    AlarmsError
    ├── UnknownId        the tenant has none with this id
    ├── NameTaken        another of the tenant's has this name
    └── BrokenRules      it breaks rules (`violations` lists each)
"""

from __future__ import annotations

from collections.abc import Sequence

from monasca_common.models.errors import Violation


class AlarmsError(Exception):
    """Base of what this package raises; what the database raises is a `StorageError`."""


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


def refuse(violations: Sequence[Violation]) -> None:
    """Raise `BrokenRules` if there are violations."""
    if violations:
        raise BrokenRules(violations)
