# SPDX-License-Identifier: Apache-2.0
"""``monasca-common persister``: from Kafka to rows until SIGTERM."""

import argparse

from oslo_config import cfg

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.config import register_logging, start_logging
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.errors import StorageError


class Persister(MonascaCommand):
    """Store what is in Kafka's topics in the database, every message once, until SIGTERM.

    The options are in [persister], [storage], [database], [kafka] and a group for each kind of data: [kafka_metrics],
    [kafka_alarm_history], [kafka_logs], [kafka_events]. SIGHUP reads them again.
    """

    extra = "persister"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serves until SIGTERM, which ends the process with 0. A start that is refused: 1, and a line that says why."""
        from monasca_common.persister import service

        try:
            conf = cfg.ConfigOpts()
            register_logging(conf)
            configuration.read(parsed_args, conf)
            start_logging(conf)
            check_at_start("persister", conf)
            service.run(conf)
        except (ConfigurationError, StorageError, cfg.Error) as error:
            return self.complain(str(error))
        return 0
