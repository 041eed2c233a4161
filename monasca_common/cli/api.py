# SPDX-License-Identifier: Apache-2.0
"""``monasca-common api``: the HTTP API."""

import argparse
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from oslo_config import cfg

from monasca_common.cli.command import MonascaCommand
from monasca_common.cli.start_check import check_at_start
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.listener import check_listener
from monasca_common.runtime.logs import register_logging, start_logging

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


class Api(MonascaCommand):
    """Serve the Monasca API over HTTP until SIGTERM or Ctrl-C.

    It listens on [api] host and port, with [api] workers processes. When stopped, it completes the requests in flight,
    waits until Kafka has acknowledged their messages, and exits with status 0. The exit status is 1 if the
    configuration is invalid, and 3 if a worker cannot start. For example:
    monasca-common api --config-file /etc/monasca/api.conf
    """

    extra = "api"
    configured = False  # the command also accepts configuration files of the original API
    reported = (ConfigurationError,)
    terminated = 0

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--config-file",
            action="append",
            metavar="F",
            help="oslo.config configuration file; can be repeated: the last value of an option applies (default: "
            "monasca-api.conf in the standard locations)",
        )

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
    """Make prometheus_client store its metrics in files that all workers share. Call this before importing
    prometheus_client. The folder comes from the environment; without one, a temporary folder is used.
    """
    named = os.environ.get(_FOLDER)
    if named is not None:
        for kind in ("counter", "gauge", "histogram", "summary"):  # the folder may also have other databases
            for left_over in Path(named).glob(f"{kind}_*.db"):
                left_over.unlink()
        yield
        return
    os.environ[_FOLDER], owner = tempfile.mkdtemp(prefix="monasca-api-"), os.getpid()
    try:
        yield
    finally:
        folder = os.environ.pop(_FOLDER)
        if os.getpid() == owner:  # a worker also exits through an exception raised in this block
            shutil.rmtree(folder, ignore_errors=True)
