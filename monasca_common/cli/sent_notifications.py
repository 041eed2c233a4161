# SPDX-License-Identifier: Apache-2.0
"""``monasca-common notification list | show | resend``: what was sent to whom, for operators."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from cliff.lister import Lister
from cliff.show import ShowOne
from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, ObjectColumn, moment_ms, positive
from monasca_common.cli.notification import open_notifications
from monasca_common.models import times

if TYPE_CHECKING:
    from monasca_common.alarms.address_keys import AddressKeys
    from monasca_common.alarms.database import AlarmsDatabase
    from monasca_common.alarms.sent_notifications import SentNotification

_LISTED = 100
_STATES = ("sending", "sent", "failed", "given up", "superseded", "silenced", "inhibited", "held")
_COLUMNS = ("id", "created", "state", "attempts", "alarm", "new_state", "method", "answer")


class NotificationList(MonascaCommand, Lister):
    """List notifications of all tenants, the newest first.

    For example, what has failed since a time:
    monasca-common notification list --state failed --since 2026-01-31T06:00:00Z
    """

    extra = "notification"

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
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
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
        with open_notifications(configuration.read(parsed_args)) as (database, keys):
            found = SentNotifications(database, keys).found(which, (), Slice(parsed_args.limit))
        return _COLUMNS, map(_row, found)


class NotificationShow(MonascaCommand, ShowOne):
    """Show one notification, with each failed attempt.

    For example:
    monasca-common notification show 0123456789abcdef
    """

    extra = "notification"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", help="its id, as `monasca-common notification list` prints it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        from monasca_common.alarms.sent_notifications import SentNotifications

        with open_notifications(configuration.read(parsed_args)) as (database, keys):
            return self.dict2columns(_facts(SentNotifications(database, keys).get(None, parsed_args.id)))


class NotificationResend(MonascaCommand):
    """Send a notification again, now, under its id; its attempts go on.

    The configuration's rules for addresses hold. Its receiver may recognize it by its id, and do nothing.
    For example:
    monasca-common notification resend 0123456789abcdef
    """

    extra = "notification"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", help="its id, as `monasca-common notification list` prints it")
        parser.add_argument(
            "--force",
            action="store_true",
            help="although an attempt seems to be under way: its process is gone",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """0: the receiver has taken it. 1: it has not, and the reason on standard error."""
        conf = configuration.read(parsed_args)
        with open_notifications(conf) as (database, keys):
            return self._resend(conf, database, keys, parsed_args)

    def _resend(
        self, conf: cfg.ConfigOpts, database: AlarmsDatabase, keys: AddressKeys, parsed_args: argparse.Namespace
    ) -> int:
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
    facts = dataclasses.asdict(sent)
    for name in ("alarm_ms", "created_ms", "updated_ms"):
        facts[name.removesuffix("_ms")] = times.shown(facts.pop(name))
    failures = [f"{times.shown(each.timestamp)}  {each.answer or '-'}" for each in sent.failures]
    return facts | {
        "failures": ObjectColumn("\n".join(failures), [msgspec.to_builtins(each) for each in sent.failures])
    }


def _row(sent: SentNotification) -> Sequence[Any]:
    method = f"{sent.method_type or 'deleted'} {sent.masked_address or sent.method_id}"
    created = times.shown(sent.created_ms)
    return sent.id, created, sent.state, sent.attempts, sent.alarm_id, sent.new_state, method, sent.answer or ""
