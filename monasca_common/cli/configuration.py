# SPDX-License-Identifier: Apache-2.0
"""Configuration files, read by commands that act on a service's configuration."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
from collections.abc import Sequence

from oslo_config import cfg

from monasca_common.kafka.config import config_file
from monasca_common.runtime import PROJECT

_OPTIONS = "oslo.config.opts"
_OURS = "monasca_common."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="F",
        help="configuration of the service; may be given several times, the later file counting (default: "
        f"{PROJECT}.conf in ~/.{PROJECT}, ~, /etc/{PROJECT} or /etc)",
    )


@functools.cache  # a scan of the installed packages takes 0.06 s, and the options as long
def own_options() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """The groups of every service with their options; those of an extra that is not installed are left out."""
    found: list[tuple[str, Sequence[cfg.Opt]]] = []
    for each in importlib.metadata.entry_points(group=_OPTIONS):
        if each.name.startswith(_OURS):
            with contextlib.suppress(ImportError):
                found += each.load()()
    return found


def register_own_options(conf: cfg.ConfigOpts) -> None:
    """So that no option is unknown, whichever service a file is for."""
    for group, options in own_options():
        conf.register_opts(options, group=group)


def read(parsed_args: argparse.Namespace, conf: cfg.ConfigOpts | None = None) -> cfg.ConfigOpts:
    """``conf``: where options that must be there before files are read are registered, as those of oslo.log.

    Raises `ConfigurationError` for a file that is missing or no configuration.
    """
    return read_files(parsed_args.config_file, cfg.ConfigOpts() if conf is None else conf)


def read_files(files: Sequence[str], conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """As `read`; without files, those in the standard locations."""
    arguments = [argument for path in files for argument in ("--config-file", path)]
    config_file.read(conf, arguments, project=PROJECT)
    return conf
