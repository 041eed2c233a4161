# SPDX-License-Identifier: Apache-2.0
"""The alarm definition that `monasca-common init` makes for audits: an ordinary one, to be changed or deleted.

Alarms need an extra, which `init` without them does not: so they are imported where they are used.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from monasca_common.alarms.settings import NoAlarmsDatabase, database_settings
from monasca_common.audit.settings import audit_settings
from monasca_common.runtime import joined
from monasca_common.storage import open_storage
from monasca_common.storage.settings import StorageSettings

_METRIC = "monasca.audit.missing_messages"  # as `audit.service` sends it, which needs an extra

NAME = "monasca audit: messages are missing"
EXPRESSION = f"max({_METRIC}) > 0"
_DESCRIPTION = "Messages that a tier should have are missing: `monasca-common audit show --missing` says where."


@dataclass(frozen=True, slots=True)
class NeededAlarm:
    """The definition of one tenant."""

    tenant: str
    settings: StorageSettings
    services: tuple[str, ...]

    def plan(self, _: object) -> dict[str, Any]:
        """What is printed of it. Raises `StorageError`."""
        status = open_storage(self.settings).status()
        missing = not status.usable or not self._is_there()
        name = f"{NAME} (tenant {self.tenant})"
        return {"kind": "alarm definition", "name": name, "services": joined(self.services), "missing": missing}

    def make(self, _: object) -> None:
        from monasca_common.alarms.database import AlarmsDatabase
        from monasca_common.alarms.definition_tables import AlarmDefinitions
        from monasca_common.alarms.definitions import AlarmDefinition
        from monasca_common.alarms.errors import NameTaken

        wanted = AlarmDefinition(NAME, EXPRESSION, _DESCRIPTION, ("topic", "tier", "application"), "HIGH")
        with contextlib.closing(AlarmsDatabase(self.settings)) as database, contextlib.suppress(NameTaken):
            AlarmDefinitions(database).create(self.tenant, wanted, round(time.time() * 1000))

    def _is_there(self) -> bool:
        from monasca_common.alarms.database import AlarmsDatabase, Slice
        from monasca_common.alarms.definition_tables import AlarmDefinitions
        from monasca_common.alarms.definitions import DefinitionFilter

        which = DefinitionFilter(self.tenant, name=NAME)
        with contextlib.closing(AlarmsDatabase(self.settings)) as database:
            stored = AlarmDefinitions(database).iter_found(which, (), Slice(1))
            with contextlib.closing(stored) as found:
                return any(True for _ in found)


def needed_alarms(confs: Mapping[str, cfg.ConfigOpts]) -> list[NeededAlarm]:
    """One for each tenant whose metric is sent, where definitions can be stored. Raises `ConfigurationError`."""
    found: dict[str, NeededAlarm] = {}
    for service, conf in confs.items():
        tenant = audit_settings(conf).tenant
        if tenant is None:
            continue
        try:
            settings = database_settings(conf)
        except NoAlarmsDatabase:
            continue
        known = found.get(tenant)
        found[tenant] = NeededAlarm(tenant, settings, (*(known.services if known else ()), service))
    return list(found.values())
