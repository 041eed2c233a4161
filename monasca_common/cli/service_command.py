# SPDX-License-Identifier: Apache-2.0
"""What all commands have in common that are services: they start with a configuration, and run until SIGTERM."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import ClassVar

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import (
    MonascaCommand,
    Terminated,
    interrupted_by_sigterm,
    interrupts_as_they_are,
    no_signal_lost,
)
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime import register_logging, start_logging


class ServiceCommand(MonascaCommand):
    """``checked``: the service, as `services` names it, whose topics are looked at before it starts. ``any_file``: it
    runs with the file of any service, so that no option in it is unknown. ``refusals``: what it raises when it cannot
    begin or go on."""

    checked: ClassVar[str]
    any_file: ClassVar[bool] = False
    refusals: ClassVar[tuple[type[Exception], ...]] = (ConfigurationError, cfg.Error)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """SIGTERM ends the start of a service with 0, as it ends one that runs."""
        try:
            with interrupted_by_sigterm(), no_signal_lost(), interrupts_as_they_are():
                return super().run(parsed_args)
        except Terminated:
            return 0
        finally:
            # cotyledon leaves the alarm of its time to stop on. Without a handler, which the interpreter takes away as
            # it ends, the alarm would kill the process.
            signal.alarm(0)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serves until SIGTERM, which ends the process with 0. A start that is refused: 1, and a line that says why."""
        run = self.runner(parsed_args)
        try:
            conf = cfg.ConfigOpts()
            register_logging(conf)
            configuration.read(parsed_args, conf)
            if self.any_file:
                configuration.register_own_options(conf)
            start_logging(conf)
            check_at_start(self.checked, conf)
            run(conf)
        except self.refusals as error:
            return self.complain(str(error))
        return 0

    def runner(self, parsed_args: argparse.Namespace) -> Callable[[cfg.ConfigOpts], None]:
        """What returns when the service has stopped. To find it imports what the extra installs: that something is not
        installed is told before anything is asked of brokers."""
        raise NotImplementedError
