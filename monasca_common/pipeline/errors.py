# SPDX-License-Identifier: Apache-2.0
"""What is wrong with specifications.

::

    ConfigurationError
    └── InvalidSpecifications   at least one row breaks a rule (`faults` tells each)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monasca_common.kafka.errors import ConfigurationError


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """``source``: the file or table; ``row``: from 1; ``field``: like ``aggregation_params_map.filter_by_list[0]``."""

    source: str
    row: int
    field: str
    rule: str

    def __str__(self) -> str:
        return f"{self.source} row {self.row}: {self.field} {self.rule}".replace(":  ", ": ")


class InvalidSpecifications(ConfigurationError):
    """Every fault of every file, for whoever mends one wants to see all."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(faults))
        super().__init__("\n".join(map(str, self.faults)))
