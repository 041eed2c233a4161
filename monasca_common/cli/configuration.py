# SPDX-License-Identifier: Apache-2.0
"""Configuration files, for commands that do what a service's configuration says."""

from __future__ import annotations

import argparse

from oslo_config import cfg

from monasca_common.kafka.config import config_file

PROJECT = "monasca-common"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="F",
        help="configuration of the service; may be given several times, the later file counting (default: "
        f"{PROJECT}.conf in ~/.{PROJECT}, ~, /etc/{PROJECT} or /etc)",
    )


def read(parsed_args: argparse.Namespace, conf: cfg.ConfigOpts | None = None) -> cfg.ConfigOpts:
    """``conf``: where options that must be there before files are read are registered, as those of oslo.log.

    Raises `ConfigurationError` for a file that is missing or no configuration.
    """
    conf = cfg.ConfigOpts() if conf is None else conf
    arguments = [argument for path in parsed_args.config_file for argument in ("--config-file", path)]
    config_file.read(conf, arguments, project=PROJECT)
    return conf
