# SPDX-License-Identifier: Apache-2.0
"""``monasca-common api``: the HTTP API until it is stopped."""

import argparse

from cliff.command import Command

from monasca_common.kafka.errors import ConfigurationError


class Api(Command):
    """Serve the Monasca API over HTTP until SIGTERM or Ctrl-C.

    It listens where [api] host and port say, on [api] workers processes. A stop answers the requests in flight,
    waits until Kafka has what they sent, and ends with status 0; a configuration that cannot work ends with 1, a
    worker that cannot start with 3.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--config-file",
            action="append",
            metavar="F",
            help="the configuration, of oslo.config; may be repeated, later files count more "
            "(default: monasca-api.conf in the standard places)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        try:
            from monasca_common.api.options import api_settings, read_configuration
            from monasca_common.api.server import Server
            from monasca_common.api.service import storage_of
        except ModuleNotFoundError as error:
            return self._complain(f"{error}: install monasca-common[api]")
        try:
            conf = read_configuration(parsed_args.config_file)
            settings = api_settings(conf)
            storage_of(conf)  # told here, once, and not by each worker
        except ConfigurationError as error:
            return self._complain(str(error))
        Server(conf, settings).run()
        return 0

    def _complain(self, text: str) -> int:
        self.app.stderr.write(f"monasca-common api: {text}\n")
        return 1
