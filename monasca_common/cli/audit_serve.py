# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit serve``: balances the books again and again, until SIGTERM."""

import argparse

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, stop_on_signals
from monasca_common.kafka.config import register_logging, start_logging
from monasca_common.kafka.errors import ConfigurationError


class AuditServe(MonascaCommand):
    """Balance what services report, again and again until SIGTERM: for the log, Prometheus, and alarms.

    The options are in [audit] and [kafka]. With tenant in [audit] it sends a metric of Monasca, over which
    `monasca-common init` defines an alarm.
    """

    extra = "monitoring"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serves until SIGTERM, which ends the process with 0. A start that is refused: 1, and a line that says why."""
        from monasca_common.monitoring.audit import service

        try:
            conf = cfg.ConfigOpts()
            register_logging(conf)
            configuration.read(parsed_args, conf)
            start_logging(conf)
            service.run(conf, lambda audit: stop_on_signals(audit.stop))
        except (ConfigurationError, cfg.Error) as error:
            return self.complain(str(error))
        return 0
