# SPDX-License-Identifier: Apache-2.0
"""The base class of commands that run a service until SIGTERM."""

from __future__ import annotations

import argparse
import importlib
import signal
from collections.abc import Callable
from typing import ClassVar

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.logs import register_logging, start_logging


class ServiceCommand(MonascaCommand):
    """A command that runs a service. ``service``: the module with its function `run`. ``checked``: the service in
    `services` whose topics are checked before the start. ``any_file``: whether the command accepts the configuration
    file of any service."""

    service: ClassVar[str]
    checked: ClassVar[str]
    any_file: ClassVar[bool] = False
    reported: ClassVar[tuple[type[Exception], ...]] = (ConfigurationError, cfg.Error)
    terminated = 0

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return super().run(parsed_args)
        finally:
            # cotyledon does not cancel the alarm of its stop timeout. The interpreter removes the signal handler when
            # it exits, and the alarm would then kill the process.
            signal.alarm(0)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serve until SIGTERM; return 0."""
        # Import first: without the extra, the import fails, and the brokers are not queried.
        run = importlib.import_module(self.service).run
        conf = cfg.ConfigOpts()
        register_logging(conf)
        configuration.read(parsed_args, conf)
        if self.any_file:
            configuration.register_own_options(conf)
        start_logging(conf)
        check_at_start(self.checked, conf)
        self.serve(run, conf, parsed_args)
        return 0

    def serve(self, run: Callable[..., None], conf: cfg.ConfigOpts, parsed_args: argparse.Namespace) -> None:
        run(conf)
