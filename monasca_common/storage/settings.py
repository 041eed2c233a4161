# SPDX-License-Identifier: Apache-2.0
"""What a driver is made from: frozen, and checked before it gets here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from monasca_common.storage.base import Kind

DEFAULT_RETENTION_DAYS = 45


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """``connection`` is a SQLAlchemy URL with its password, and so is never shown.

    ``retention_days``: of the kinds that differ from ``default_retention_days``.
    """

    driver: str
    connection: str = field(repr=False)
    default_retention_days: int = DEFAULT_RETENTION_DAYS
    retention_days: Mapping[Kind, int] = field(default_factory=lambda: MappingProxyType({}))
    future_tolerance_seconds: int = 86_400
    write_timeout_seconds: float = 30.0
    read_timeout_seconds: float = 10.0
    read_connections: int = 10
    max_results: int = 100_000

    def retention_of(self, kind: Kind) -> int:
        """Days."""
        return self.retention_days.get(kind, self.default_retention_days)
