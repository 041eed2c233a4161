# SPDX-License-Identifier: Apache-2.0
"""``monasca-common persister``: from Kafka to rows until SIGTERM."""

import argparse

from cliff.command import Command
from oslo_config import cfg
from oslo_log import log

from monasca_common.cli import configuration
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.errors import StorageError


class Persister(Command):
    """Store what is in Kafka's topics in the database, every message once, until SIGTERM.

    The options are in [persister], [storage], [database], [kafka] and a group for each kind of data: [kafka_metrics],
    [kafka_alarm_history], [kafka_logs], [kafka_events]. SIGHUP reads them again.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configuration.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serves until SIGTERM, which ends the process with 0. A start that is refused: 1, and a line that says why."""
        try:
            from monasca_common.persister import service
        except ImportError as error:
            return self._complain(f"{error}: install monasca-common[persister]")
        try:
            conf = cfg.ConfigOpts()
            log.register_options(conf)
            configuration.read(parsed_args, conf)
            log.setup(conf, configuration.PROJECT)
            service.run(conf)
        except (ConfigurationError, StorageError, cfg.Error, log.LogConfigError) as error:
            return self._complain(str(error))
        return 0

    def _complain(self, text: str) -> int:
        self.app.stderr.write(f"monasca-common persister: {text}\n")
        return 1
