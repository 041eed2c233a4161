# SPDX-License-Identifier: Apache-2.0
"""``monasca-common notification``: run the notification service; ``test`` and ``rotate-keys`` are for operators."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka.clock import SystemClock

if TYPE_CHECKING:
    from monasca_common.alarms.address_keys import AddressKeys
    from monasca_common.alarms.database import AlarmsDatabase
    from monasca_common.alarms.transitions import AlarmChange

_METHOD = "notification-test"


class NotificationService(ServiceCommand):
    """Run the notification service until SIGTERM.

    The options are in [notification], [alarm_processor], [retry_engine], a group for each notifier, [alarms],
    [database], [kafka] and [kafka_notifications]. For example:
    monasca-common notification --config-file /etc/monasca/notification.conf
    """

    extra = "notification"
    service = "monasca_common.notification.service"
    checked = "notification"


class NotificationTest(MonascaCommand):
    """Send a test message as the notification service would, with the same rules for addresses.

    The output contains the id by which a receiver identifies the message. For example:
    monasca-common notification test --type EMAIL --address ann@example.org
    """

    extra = "notification"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--type", required=True, help="the type, such as webhook, email or slack")
        parser.add_argument("--address", required=True, help="the address: a URL, an e-mail address or a routing key")

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Return 0 if the receiver accepted the message, otherwise 1."""
        from monasca_common.notification.errors import NotificationError
        from monasca_common.notification.notification import notification_of
        from monasca_common.notification.notifiers.base import load_notifiers

        try:
            notification = replace(notification_of(_test_change(), _METHOD), method_id="")
            [notifier] = load_notifiers(configuration.read(parsed_args), parsed_args.type)
            answer = notifier.send(notification, parsed_args.address)
        except NotificationError as error:
            return self.report(error.for_operators)
        self.print(f"sent: {notification.id}" + (f" ({answer})" if answer else ""))
        return 0


@contextlib.contextmanager
def open_notifications(conf: cfg.ConfigOpts) -> Iterator[tuple[AlarmsDatabase, AddressKeys]]:
    """Open the database, and read the keys. Raises `ConfigurationError`."""
    from monasca_common.alarms.address_keys import read_keys
    from monasca_common.alarms.database import AlarmsDatabase
    from monasca_common.alarms.settings import database_settings

    settings, keys = database_settings(conf), read_keys(conf)
    with contextlib.closing(AlarmsDatabase(settings)) as database:
        yield database, keys


def _test_change() -> AlarmChange:
    from monasca_common.alarms.transitions import AlarmChange, AlarmedMetric

    return AlarmChange(
        tenant="test",
        alarm_id="test",
        definition_id="test",
        name="Test of a notification method",
        description="",
        severity="LOW",
        actions_enabled=True,
        old_state="UNDETERMINED",
        new_state="OK",
        reason="Test by `monasca-common notification test`",
        time_ms=SystemClock().time_ms(),
        link=None,
        lifecycle_state=None,
        metrics=[AlarmedMetric("test", {"service": "monitoring"})],
    )


class RotateKeys(MonascaCommand):
    """Encrypt the addresses of all notification methods with the first key of [alarms] address_keys.

    Services that have this key can run at the same time. The command can be repeated. For example:
    monasca-common notification rotate-keys --config-file /etc/monasca/notification.conf
    """

    extra = "notification"

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Return 0 if all addresses are encrypted with the first key, or 1 if no key is set or an address needs a
        missing key."""
        from monasca_common.alarms.address_keys import rotate_configured

        rotated = rotate_configured(configuration.read(parsed_args))
        if rotated is None:
            return self.report("address_keys in group [alarms] is not set: set an encryption key")
        self.print(
            f"{rotated.changed} addresses were encrypted with the first key; all others were already encrypted with it."
        )
        for name, count in sorted(rotated.unreadable.items()):
            self.report(f"{count} need the key {name}, which is not in address_keys in group [alarms]: add it")
        return 1 if rotated.unreadable else 0
