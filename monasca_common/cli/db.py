# SPDX-License-Identifier: Apache-2.0
"""``monasca-common db upgrade | prune | status``: manage the database."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cliff.show import ShowOne

from monasca_common.alarms.settings import NoAlarmsDatabase, database_settings, own_connection
from monasca_common.cli import configuration
from monasca_common.cli.command import ChangeLister, MonascaCommand, ObjectColumn
from monasca_common.kafka.clock import SystemClock
from monasca_common.runtime.logs import shown_url
from monasca_common.storage import Storage, load_storage, open_storage
from monasca_common.storage.base import StoredOffset
from monasca_common.storage.errors import NotSupported
from monasca_common.storage.settings import storage_settings


class DbUpgrade(MonascaCommand, ChangeLister):
    """Create the tables of the database, or upgrade them to this program's schema.

    The command can be repeated; an up-to-date schema is not changed. A failed upgrade is rolled back. For example:
    monasca-common db upgrade --config-file /etc/monasca/persister.conf
    """

    columns = ("database", "before", "after")

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        from monasca_common.alarms.address_keys import rotate_configured

        conf = configuration.read(parsed_args)
        databases = [storage_settings(conf)]
        if own_connection(conf) is not None:
            databases.append(database_settings(conf))
        for each in databases:
            storage = open_storage(each)
            before = _revision(storage)
            storage.upgrade()
            rows.append((shown_url(each.connection), before, _revision(storage)))
        try:
            rotated = rotate_configured(conf)
        except NoAlarmsDatabase:
            rotated = None
        if rotated is not None and rotated.changed:
            self.report(f"{rotated.changed} addresses of notification methods were encrypted")


def _revision(storage: Storage) -> str | None:
    """Return the schema's revision, or ``None`` if there is no schema."""
    try:
        return storage.status().found
    except NotSupported:
        return None


class DbPrune(MonascaCommand, ChangeLister):
    """Remove rows that are older than [storage] retention_days.

    Services can run at the same time. Rows that are removed before an interruption stay removed. For example:
    monasca-common db prune --config-file /etc/monasca/persister.conf
    """

    columns = ("table", "unit", "removed")

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        storage = load_storage(configuration.read(parsed_args))
        removed: Counter[tuple[str, str]] = Counter()
        try:
            for step in storage.prune(SystemClock().time_ms()):
                removed[step.table, step.unit] += step.removed
        finally:
            rows += [(*which, count) for which, count in removed.items()]


class DbStatus(MonascaCommand, ShowOne):
    """Show the schema's revision and the stored offsets.

    The exit status is 1 if this program cannot use the database. For example, print JSON for a program:
    monasca-common db status --config-file /etc/monasca/persister.conf -f json
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        status = load_storage(configuration.read(parsed_args)).status()
        if not status.usable:
            self.report(status.mismatch)
            self._status = 1
        facts: dict[str, Any] = {"current": status.usable, "schema": status.found, "wanted": status.wanted}
        return self.dict2columns(facts | {"offsets": _offsets(status.offsets)})


def _offsets(stored: Sequence[StoredOffset]) -> ObjectColumn:
    lines = (f"{each.group} {each.topic}/{each.partition} below {each.next_offset}" for each in stored)
    return ObjectColumn("\n".join(lines), [asdict(each) for each in stored])
