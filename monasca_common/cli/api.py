# SPDX-License-Identifier: Apache-2.0
"""``monasca-common api``: the HTTP API until it is stopped."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from oslo_config import cfg

from monasca_common.cli.command import MonascaCommand
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime import check_listener, register_logging, start_logging, temporary_folder

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


class Api(MonascaCommand):
    """Serve the Monasca API over HTTP until SIGTERM or Ctrl-C.

    It listens where [api] host and port say, on [api] workers processes. A stop answers the requests in flight,
    waits until Kafka has what they sent, and ends with status 0; a configuration that cannot work ends with 1, a
    worker that cannot start with 3. For example:
    monasca-common api --config-file /etc/monasca/api.conf
    """

    extra = "api"
    configured = False  # its files are also those of the original API
    reported = (ConfigurationError,)
    terminated = 0

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
        with metrics_of_all_workers():
            return self._serve(parsed_args)

    def _serve(self, parsed_args: argparse.Namespace) -> int:
        from monasca_common.api.server import Server
        from monasca_common.api.service import check
        from monasca_common.api.settings import API_GROUP, read_configuration

        conf = cfg.ConfigOpts()
        register_logging(conf)
        read_configuration(parsed_args.config_file, conf)
        start_logging(conf)
        settings = check(conf)
        check_listener(API_GROUP, settings.host, settings.port)
        if settings.status.port is not None:
            check_listener(API_GROUP, settings.status.host, settings.status.port, prefix="status_")
        check_at_start("api", conf)
        Server(conf, settings).run()
        return 0


@contextlib.contextmanager
def metrics_of_all_workers() -> Iterator[None]:
    """Within, prometheus_client, which must not have been imported before, counts in files that all workers share.

    The folder is the operator's, or made for the time being.
    """
    named = os.environ.get(_FOLDER)
    if named is not None:
        for left_over in Path(named).glob("*.db"):
            left_over.unlink()
        yield
        return
    with temporary_folder("monasca-api-") as folder:  # a worker ends by an exception that comes by here
        os.environ[_FOLDER] = str(folder)
        try:
            yield
        finally:
            del os.environ[_FOLDER]
