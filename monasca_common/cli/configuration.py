# SPDX-License-Identifier: Apache-2.0
"""Reads configuration files for commands."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
from collections.abc import Sequence

from oslo_config import cfg

from monasca_common.kafka.config import config_file
from monasca_common.runtime.logs import PROJECT

_OPTIONS = "oslo.config.opts"
_OURS = "monasca_common."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="F",
        help=f"configuration file; can be repeated: the last value of an option applies (default: {PROJECT}.conf in "
        f"~/.{PROJECT}, ~, /etc/{PROJECT} or /etc)",
    )


@functools.cache  # scanning the installed packages takes 0.06 s, and so does loading the options
def own_options() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the option groups of every service, except those of extras that are not installed."""
    found: list[tuple[str, Sequence[cfg.Opt]]] = []
    for each in importlib.metadata.entry_points(group=_OPTIONS):
        if each.name.startswith(_OURS):
            with contextlib.suppress(ImportError):
                found += each.load()()
    return found


def register_own_options(conf: cfg.ConfigOpts) -> None:
    """Register the options of every service, so that a file of any service can be read."""
    for group, options in own_options():
        conf.register_opts(options, group=group)


def read(parsed_args: argparse.Namespace, conf: cfg.ConfigOpts | None = None) -> cfg.ConfigOpts:
    """Read the files. ``conf``: contains options that must be registered before the files are read, such as those of
    oslo.log. Raises `ConfigurationError` if a file is missing or invalid.
    """
    return read_files(parsed_args.config_file, cfg.ConfigOpts() if conf is None else conf)


def read_files(files: Sequence[str], conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """Read these files, or the files in the standard locations if no file is named."""
    arguments = [argument for path in files for argument in ("--config-file", path)]
    config_file.read(conf, arguments, project=PROJECT)
    return conf
