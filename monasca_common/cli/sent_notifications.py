# SPDX-License-Identifier: Apache-2.0
"""``monasca-common notification list | show | resend``: what was sent to whom, for operators."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, moment_ms, positive
from monasca_common.cli.notification import open_notifications
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.models import times
from monasca_common.storage.errors import StorageError

if TYPE_CHECKING:
    from monasca_common.alarms.address_keys import AddressKeys
    from monasca_common.alarms.database import AlarmsDatabase
    from monasca_common.alarms.sent_notifications import SentNotification

_LISTED = 100
_STATES = ("sending", "sent", "failed", "given up", "superseded", "silenced", "inhibited", "held")
_TITLES = ("ID", "CREATED", "STATE", "ATTEMPTS", "ALARM", "NEW STATE", "METHOD", "ANSWER")


class _LedgerCommand(MonascaCommand):
    """The database is that of [alarms] connection. Addresses are shown by their host alone."""

    extra = "notification"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """0: done. 1: not, and the reason on standard error."""
        from monasca_common.alarms.errors import AlarmsError

        try:
            conf = configuration.read(parsed_args)
            with open_notifications(conf) as (database, keys):
                return self.act(conf, database, keys, parsed_args)
        except (AlarmsError, ConfigurationError, StorageError, cfg.Error) as error:
            return self.complain(str(error))

    def act(
        self, conf: cfg.ConfigOpts, database: AlarmsDatabase, keys: AddressKeys, parsed_args: argparse.Namespace
    ) -> int:
        raise NotImplementedError


class NotificationList(_LedgerCommand):
    """List notifications of all tenants, the newest first.

    For example, what has failed since a time:
    monasca-common notification list --state failed --since 2026-01-31T06:00:00Z
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--tenant", help="only those of this project")
        parser.add_argument("--alarm", help="only those of the alarm with this id")
        parser.add_argument("--method", help="only those by the notification method with this id")
        parser.add_argument(
            "--state", action="append", choices=_STATES, help="only those in this state; may be repeated"
        )
        parser.add_argument("--since", type=moment_ms, metavar="TIME", help="only those that were made then or later")
        parser.add_argument("--until", type=moment_ms, metavar="TIME", help="only those that were made then or earlier")
        parser.add_argument(
            "--limit", type=positive, default=_LISTED, metavar="N", help="at most so many (default: %(default)s)"
        )
        parser.add_argument("--json", action="store_true", help="print one line of JSON in place of a table")
        return parser

    def act(
        self, _conf: cfg.ConfigOpts, database: AlarmsDatabase, keys: AddressKeys, parsed_args: argparse.Namespace
    ) -> int:
        from monasca_common.alarms.database import Slice
        from monasca_common.alarms.sent_notifications import SentNotifications, WhichNotifications

        which = WhichNotifications(
            parsed_args.tenant,
            alarm_id=parsed_args.alarm,
            method_id=parsed_args.method,
            states=tuple(parsed_args.state or ()),
            start_ms=parsed_args.since,
            end_ms=parsed_args.until,
        )
        found = SentNotifications(database, keys).found(which, (), Slice(parsed_args.limit))
        if parsed_args.json:
            self.print(json.dumps([_facts(each) for each in found]))
        else:
            self.print(*(_table([_TITLES, *map(_cells, found)]) if found else ["There are none."]))
        return 0


class NotificationShow(_LedgerCommand):
    """Show one notification, with each failed attempt.

    For example:
    monasca-common notification show 0123456789abcdef
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", help="its id, as `monasca-common notification list` prints it")
        parser.add_argument("--json", action="store_true", help="print one line of JSON in place of text")
        return parser

    def act(
        self, _conf: cfg.ConfigOpts, database: AlarmsDatabase, keys: AddressKeys, parsed_args: argparse.Namespace
    ) -> int:
        from monasca_common.alarms.sent_notifications import SentNotifications

        found = SentNotifications(database, keys).get(None, parsed_args.id)
        self.print(*([json.dumps(_facts(found))] if parsed_args.json else _lines(found)))
        return 0


class NotificationResend(_LedgerCommand):
    """Send a notification again, now, under its id; its attempts go on.

    The configuration's rules for addresses hold. Its receiver may recognize it by its id, and do nothing.
    For example:
    monasca-common notification resend 0123456789abcdef
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", help="its id, as `monasca-common notification list` prints it")
        parser.add_argument(
            "--force",
            action="store_true",
            help="although an attempt seems to be under way: its process is gone",
        )
        return parser

    def act(
        self, conf: cfg.ConfigOpts, database: AlarmsDatabase, keys: AddressKeys, parsed_args: argparse.Namespace
    ) -> int:
        """0: the receiver has taken it. 1: it has not, and the reason on standard error."""
        from monasca_common.alarms.notification_methods import NotificationMethods
        from monasca_common.alarms.sent_notifications import SentNotifications
        from monasca_common.notification.errors import NotificationError
        from monasca_common.notification.ledger import FAILED, SENT, Ledger
        from monasca_common.notification.notification import Notification
        from monasca_common.notification.notifiers.plugins import Notifiers

        stored, ledger = SentNotifications(database, keys), Ledger(database)
        before, changes = stored.get(None, parsed_args.id), stored.changes(parsed_args.id)
        if not changes:
            return self.complain("an older program recorded it, without what it said: it cannot be sent again")
        method = NotificationMethods(database, keys).get(before.tenant, before.method_id)
        notifier = Notifiers(conf).load(method.type)
        notification = Notification(before.id, changes[0], tuple(changes[1:]), method.id)
        if not ledger.resend(notification.id, _now_ms(), also_under_way=parsed_args.force):
            return self.complain("an attempt is under way: wait for its end, or use --force if its process is gone")
        try:
            answer = notifier.send(notification, method.address)
        except Exception as error:
            if not isinstance(error, NotificationError):
                error = NotificationError(f"{method.type}: {type(error).__name__}")
            ledger.finish(notification, FAILED, _now_ms(), str(error))
            ledger.restore(notification.id, before.state)
            return self.complain(error.for_operators)
        ledger.finish(notification, SENT, _now_ms(), answer)
        self.print(f"sent: {notification.id}" + (f" ({answer})" if answer else ""))
        return 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _facts(sent: SentNotification) -> dict[str, Any]:
    """What ``--json`` prints; times are in milliseconds."""
    return {**dataclasses.asdict(sent), "failures": [msgspec.to_builtins(each) for each in sent.failures]}


def _cells(sent: SentNotification) -> Sequence[str]:
    method = f"{sent.method_type or 'deleted'} {sent.masked_address or sent.method_id}"
    created = times.shown(sent.created_ms)
    return sent.id, created, sent.state, str(sent.attempts), sent.alarm_id, sent.new_state, method, sent.answer or ""


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _lines(sent: SentNotification) -> Iterator[str]:
    yield f"id          {sent.id}"
    yield f"state       {sent.state}"
    yield f"alarm       {sent.alarm_id} became {sent.new_state} at {times.shown(sent.alarm_ms)}"
    yield f"definition  {sent.definition_id or 'not recorded'}"
    yield f"tenant      {sent.tenant}"
    what = f"{sent.method_name} ({sent.method_type} {sent.masked_address})" if sent.method_name else "deleted"
    yield f"method      {sent.method_id}, {what}"
    yield f"attempts    {sent.attempts}, of which {sent.repeats} repeated one that a crash had hidden"
    yield f"created     {times.shown(sent.created_ms)}"
    yield f"updated     {times.shown(sent.updated_ms)}"
    yield f"answer      {sent.answer or '-'}"
    for each in sent.failures:
        yield f"failed      {times.shown(each.timestamp)}  {each.answer or '-'}"
