# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dashboard``: the web dashboard; ``dashboard password``: an entry for its password file."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import sys
from collections.abc import Callable, Sequence

from oslo_config import cfg

from monasca_common.cli import services
from monasca_common.cli.command import MonascaCommand
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.kafka.errors import ConfigurationError

_LEAST_CHARACTERS = 12


class Dashboard(ServiceCommand):
    """Serve the dashboard over HTTP until SIGTERM or Ctrl-C: completeness, lag, dead letters, durability and load.

    It listens on [dashboard] host and port, and changes no data. The exit status is 0 after a normal stop, and 1 if the
    configuration is invalid or unsafe. For example:
    monasca-common dashboard --config-file /etc/monasca/dashboard.conf
    """

    extra = "dashboard"
    service = "monasca_common.operations.dashboard.server"
    checked = "dashboard"
    any_file = True

    def serve(self, run: Callable[..., None], conf: cfg.ConfigOpts, parsed_args: argparse.Namespace) -> None:
        run(conf, dead_letter_topics(parsed_args.config_file))


class DashboardPassword(MonascaCommand):
    """Print a user's line for [dashboard] password_file.

    The password is read from the terminal or standard input; the line contains only its hash. For example:
    monasca-common dashboard password --user operator
    """

    extra = "dashboard"
    configured = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--user", required=True, metavar="U", help="the name with which the user logs in")

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from monasca_common.operations.dashboard.passwords import password_line

        is_terminal = sys.stdin.isatty()
        password = getpass.getpass() if is_terminal else sys.stdin.readline().rstrip("\r\n")
        if len(password) < _LEAST_CHARACTERS:
            return self.report(f"the password is too short: use at least {_LEAST_CHARACTERS} characters")
        if is_terminal and password != getpass.getpass("Again: "):
            return self.report("the passwords differ: try again")
        self.print(password_line(parsed_args.user, password))
        return 0


def dead_letter_topics(files: Sequence[str]) -> set[str]:
    """Return the dead-letter topics of the services in these files."""
    found: set[str] = set()
    for service in (*services.SERVICES, *services.ON_REQUEST):
        with contextlib.suppress(ConfigurationError, ImportError):
            conf = services.read_service(service, files)
            found.update(each.name for each in services.topics(service, conf) if each.dead_letters)
    return found
