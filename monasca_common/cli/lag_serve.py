# SPDX-License-Identifier: Apache-2.0
"""``monasca-common lag serve``: surveys every group again and again, until SIGTERM."""

import argparse

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, stop_on_signals
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.config import register_logging, start_logging
from monasca_common.kafka.errors import ConfigurationError


class LagServe(MonascaCommand):
    """Look at all consumer groups again and again until SIGTERM: for Prometheus, and for the topic with the history.

    The options are in [lag] and [kafka]. SIGTERM and Ctrl-C end it after the survey that is under way.
    """

    extra = "monitoring"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serves until SIGTERM, which ends the process with 0. A start that is refused: 1, and a line that says why."""
        from monasca_common.monitoring import lag_service

        try:
            conf = cfg.ConfigOpts()
            register_logging(conf)
            configuration.read(parsed_args, conf)
            start_logging(conf)
            check_at_start("lag", conf)
            lag_service.run(conf, lambda service: stop_on_signals(service.stop))
        except (ConfigurationError, cfg.Error) as error:
            return self.complain(str(error))
        return 0
