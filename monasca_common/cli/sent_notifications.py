# SPDX-License-Identifier: Apache-2.0
"""``monasca-common notification list | show | resend``: manage sent notifications."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from cliff.lister import Lister
from cliff.show import ShowOne
from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, ObjectColumn, add_since, moment_ms, positive
from monasca_common.cli.notification import open_notifications
from monasca_common.kafka.clock import SystemClock
from monasca_common.models import times

if TYPE_CHECKING:
    from monasca_common.alarms.address_keys import AddressKeys
    from monasca_common.alarms.database import AlarmsDatabase
    from monasca_common.alarms.sent_notifications import SentNotification

_LISTED = 100
_STATES = ("sending", "sent", "failed", "given up", "superseded", "silenced", "inhibited", "held")
_COLUMNS = ("id", "created", "state", "attempts", "alarm", "new_state", "method", "answer")


class NotificationList(MonascaCommand, Lister):
    """List notifications of all tenants, newest first.

    For example, list the notifications that failed since a time:
    monasca-common notification list --state failed --since 2026-01-31T06:00:00Z
    """

    extra = "notification"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--tenant", help="only notifications of this project")
        parser.add_argument("--alarm", help="only notifications of the alarm with this id")
        parser.add_argument("--method", help="only notifications through the method with this id")
        parser.add_argument(
            "--state", action="append", choices=_STATES, help="only notifications in this state; can be repeated"
        )
        add_since(parser, "those created")
        parser.add_argument(
            "--until", type=moment_ms, metavar="TIME", help="only notifications created at or before this time"
        )
        parser.add_argument(
            "--limit", type=positive, default=_LISTED, metavar="N", help="maximum number of rows (default: %(default)s)"
        )

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
            found = SentNotifications(database, keys).found(which, Slice(parsed_args.limit))
        return _COLUMNS, map(_row, found)


class NotificationShow(MonascaCommand, ShowOne):
    """Show one notification with its failed attempts.

    For example:
    monasca-common notification show 0123456789abcdef
    """

    extra = "notification"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("id", help="the id in the output of `monasca-common notification list`")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        from monasca_common.alarms.sent_notifications import SentNotifications

        with open_notifications(configuration.read(parsed_args)) as (database, keys):
            return self.dict2columns(_facts(SentNotifications(database, keys).get(None, parsed_args.id)))


class NotificationResend(MonascaCommand):
    """Send a notification again with the same id, as another attempt.

    The configured rules for addresses apply. The receiver may ignore an id that it has already received. For example:
    monasca-common notification resend 0123456789abcdef
    """

    extra = "notification"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("id", help="the id in the output of `monasca-common notification list`")
        parser.add_argument(
            "--force",
            action="store_true",
            help="send even if an attempt seems to be in progress; use this if its process no longer exists",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Return 0 if the receiver accepted the notification, otherwise 1."""
        conf = configuration.read(parsed_args)
        with open_notifications(conf) as (database, keys):
            return self._resend(conf, database, keys, parsed_args)

    def _resend(
        self, conf: cfg.ConfigOpts, database: AlarmsDatabase, keys: AddressKeys, parsed_args: argparse.Namespace
    ) -> int:
        from monasca_common.alarms.notification_methods import NotificationMethods
        from monasca_common.alarms.sent_notifications import SentNotifications
        from monasca_common.notification.deferred import DeferredNotifications
        from monasca_common.notification.errors import NotificationError
        from monasca_common.notification.ledger import FAILED, SENT, Ledger
        from monasca_common.notification.notification import Notification
        from monasca_common.notification.notifiers.base import load_notifiers

        stored, ledger, now_ms = SentNotifications(database, keys), Ledger(database), SystemClock().time_ms
        before, changes = stored.get(None, parsed_args.id), stored.changes(parsed_args.id)
        if not changes:
            return self.report("this notification cannot be sent again: an older version stored it without its content")
        method = NotificationMethods(database, keys).get(before.tenant, before.method_id)
        [notifier] = load_notifiers(conf, method.type)
        notification = Notification(before.id, changes[0], tuple(changes[1:]), method.id)
        if not ledger.resend(notification.id, now_ms(), also_under_way=parsed_args.force):
            return self.report(
                "an attempt is in progress: wait until it ends, or use --force if its process no longer exists"
            )
        try:
            answer = notifier.send(notification, method.address)
        except Exception as error:
            if not isinstance(error, NotificationError):
                error = NotificationError(f"{method.type}: {type(error).__name__}")
            ledger.finish(notification, FAILED, now_ms(), str(error))
            ledger.restore(notification.id, before.state)
            return self.report(error.for_operators)
        ledger.finish(notification, SENT, now_ms(), answer)
        DeferredNotifications(database).finish(notification.id, now_ms())
        self.print(f"sent: {notification.id}" + (f" ({answer})" if answer else ""))
        return 0


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
