# SPDX-License-Identifier: Apache-2.0
"""``monasca-common db upgrade | prune | status``: what an operator does with the database."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from typing import Any

from oslo_config import cfg

from monasca_common.alarms.settings import NoAlarmsDatabase, database_settings, own_connection
from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand
from monasca_common.cli.terminal import obeyed
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage import Storage, load_storage, open_storage
from monasca_common.storage.base import StorageStatus
from monasca_common.storage.errors import NotSupported, StorageError


class _DatabaseCommand(MonascaCommand):
    """The database is that of [storage] driver and [database] connection."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="print one line of JSON in place of text")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """0: done. 1: not, and the reason on standard error."""
        try:
            conf = configuration.read(parsed_args)
            status = self.act(load_storage(conf), as_json=parsed_args.json)
            return self.act_on_alarms(conf, parsed_args) if status == 0 else status
        except (ConfigurationError, StorageError) as error:
            return self.complain(str(error))

    def act(self, storage: Storage, *, as_json: bool) -> int:
        raise NotImplementedError

    def act_on_alarms(self, _conf: cfg.ConfigOpts, _parsed_args: argparse.Namespace) -> int:
        """Where [alarms] connection is a database of its own."""
        return 0


class DbUpgrade(_DatabaseCommand):
    """Make the database's tables, or bring them to what this program needs.

    May be run again at any time; what is up to date is left alone. Nothing of it is done if a step fails.
    For example:
    monasca-common db upgrade --config-file /etc/monasca/persister.conf
    """

    def act(self, storage: Storage, *, as_json: bool) -> int:
        before = _revision(storage)
        storage.upgrade()
        after = _revision(storage)
        if as_json:
            self.print(json.dumps({"before": before, "after": after}))
        elif after is None:
            self.print("The database is there; its driver has no schema.")
        elif before == after:
            self.print(f"The schema is {after} already.")
        else:
            self.print(f"The schema is {after} now; it was {before or 'not there'}.")
        return 0

    def act_on_alarms(self, conf: cfg.ConfigOpts, parsed_args: argparse.Namespace) -> int:
        status = 0
        if own_connection(conf) is not None:
            if not parsed_args.json:
                self.print("In the database of [alarms] connection:")
            status = self.act(open_storage(database_settings(conf)), as_json=parsed_args.json)
        return status or self._encrypt_addresses(conf, as_json=parsed_args.json)

    def _encrypt_addresses(self, conf: cfg.ConfigOpts, *, as_json: bool) -> int:
        """Where there are keys; without them addresses stay as they are."""
        from monasca_common.alarms.address_keys import rotate_configured

        try:
            rotated = rotate_configured(conf)
        except NoAlarmsDatabase:
            return 0
        if rotated is not None and rotated.changed and not as_json:
            self.print(f"{rotated.changed} addresses of notification methods are encrypted now.")
        return 0


def _revision(storage: Storage) -> str | None:
    """The schema's revision; ``None``: there is no schema, or the driver has none."""
    try:
        return storage.status().found
    except NotSupported:
        return None


class DbPrune(_DatabaseCommand):
    """Remove rows that are older than [storage] retention_days.

    Services may run meanwhile. What is removed before an interruption stays removed. For example:
    monasca-common db prune --config-file /etc/monasca/persister.conf
    """

    def act(self, storage: Storage, *, as_json: bool) -> int:
        removed: Counter[tuple[str, str]] = Counter()
        # A carriage return is for eyes; in a file or a pipe it would be noise.
        lively = not as_json and self.app.stdout.isatty()
        for step in storage.prune(SystemClock().time_ms()):
            removed[step.table, step.unit] += step.removed
            if lively:
                out = obeyed(self.app.stdout)
                out.write(f"\r{removed[step.table, step.unit]:>15,} {step.unit} of {step.table}")
                out.flush()
        if lively and removed:
            self.app.stdout.write("\n")
        if as_json:
            rows = [{"table": table, "unit": unit, "removed": count} for (table, unit), count in removed.items()]
            self.print(json.dumps({"removed": rows}))
        else:
            for (table, unit), count in removed.items():
                self.print(f"{count:,} {unit} of {table} removed")
            if not removed:
                self.print("Nothing is older than it may be.")
        return 0


class DbStatus(_DatabaseCommand):
    """Tell the schema's revision, the size, and up to which offsets rows are stored.

    The exit status is 0 where this program may run on the database, else 1. For example, for a program:
    monasca-common db status --config-file /etc/monasca/persister.conf --json
    """

    def act(self, storage: Storage, *, as_json: bool) -> int:
        status = storage.status()
        current = status.usable
        self.print(json.dumps(description(status)) if as_json else summary(status))
        return 0 if current else 1


def description(status: StorageStatus) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {**dataclasses.asdict(status), "current": status.usable}


def summary(status: StorageStatus) -> str:
    lines = [f"schema      {status.found}, as this program needs it"]
    if status.found != status.wanted and status.usable:
        lines = [f"schema      {status.found}, of a newer program; this one ({status.wanted}) may run on it"]
    elif status.found != status.wanted:
        found = status.found or "none yet"
        lines = [f"schema      {found}, but this program needs {status.wanted}: run monasca-common db upgrade"]
    if status.size_bytes is not None:
        lines.append(f"size        {status.size_bytes / 1_000_000:,.1f} MB")
    if status.partitions is not None:
        lines.append(f"partitions  {status.partitions}")
    lines += [
        f"stored      {each.group} {each.topic}/{each.partition} below {each.next_offset}" for each in status.offsets
    ]
    return "\n".join(lines)
