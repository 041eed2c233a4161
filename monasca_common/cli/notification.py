# SPDX-License-Identifier: Apache-2.0
"""``monasca-common notification``: from changes of alarms to people until SIGTERM; ``… test`` sends one message."""

import argparse
import time

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand
from monasca_common.kafka.config import register_logging, start_logging
from monasca_common.kafka.errors import ConfigurationError

_METHOD = "notification-test"


class NotificationService(MonascaCommand):
    """Tell people of changes of alarms until SIGTERM, as the definitions' actions say.

    The options are in [notification], [alarm_processor], [retry_engine], a group for each notifier, [alarms],
    [database], [kafka], [kafka_notifications] and [kafka_retry_notifications].
    """

    extra = "notification"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serves until SIGTERM, which ends the process with 0. A start that is refused: 1, and a line that says why."""
        from monasca_common.notification import service

        try:
            conf = cfg.ConfigOpts()
            register_logging(conf)
            configuration.read(parsed_args, conf)
            start_logging(conf)
            service.run(conf)
        except (ConfigurationError, cfg.Error) as error:
            return self.complain(str(error))
        return 0


class NotificationTest(MonascaCommand):
    """Send a test message, as the notification service would send one.

    The configuration's rules hold: the address is resolved and judged. The id is printed by which a receiver knows
    the message.
    """

    extra = "notification"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        parser.add_argument("--type", required=True, help="the type of the method: webhook, email, slack, …")
        parser.add_argument(
            "--address", required=True, help="the address of the method: a URL, an address of e-mail, a routing key"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Exit status: 0 when the receiver has taken it; 1, and a line that says why, when not."""
        from monasca_common.alarms.transitions import AlarmChange, AlarmedMetric
        from monasca_common.notification.errors import NotificationError
        from monasca_common.notification.notice import notice_of
        from monasca_common.notification.notifiers.plugins import Notifiers

        change = AlarmChange(
            tenant="test",
            alarm_id="test",
            definition_id="test",
            name="Test of a notification method",
            description="",
            severity="LOW",
            actions_enabled=True,
            old_state="UNDETERMINED",
            new_state="OK",
            reason="Somebody called `monasca-common notification test`",
            time_ms=time.time_ns() // 1_000_000,
            link=None,
            lifecycle_state=None,
            metrics=[AlarmedMetric("test", {"service": "monitoring"})],
        )
        notice = notice_of(change, _METHOD)
        try:
            conf = configuration.read(parsed_args)
            Notifiers(conf).load(parsed_args.type).send(notice, parsed_args.address)
        except (NotificationError, ConfigurationError, cfg.Error) as error:
            return self.complain(str(error))
        self.print(f"sent: {notice.id}")
        return 0


class RotateKeys(MonascaCommand):
    """Encrypt the addresses of all notification methods with the first of [alarms] address_keys.

    Services may run meanwhile, if they have this key too. May be run again at any time.
    """

    extra = "notification"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """0: all are. 1: without keys, or where an address needs a key that is not there."""
        from monasca_common.alarms.address_keys import rotate_configured
        from monasca_common.storage.errors import StorageError

        try:
            rotated = rotate_configured(configuration.read(parsed_args))
        except (ConfigurationError, StorageError, cfg.Error) as error:
            return self.complain(str(error))
        if rotated is None:
            return self.complain("address_keys in group [alarms] is not set: there is nothing to encrypt with")
        self.print(f"{rotated.changed} addresses are encrypted with the first key now; the others were already.")
        for name, count in sorted(rotated.unreadable.items()):
            self.complain(f"{count} need the key {name}, which is not among address_keys in group [alarms]: add it")
        return 1 if rotated.unreadable else 0
