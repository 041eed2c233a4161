# SPDX-License-Identifier: Apache-2.0
"""Logs of a service: oslo.log, set up alike in all of them, by ``[DEFAULT]`` of their configuration."""

from __future__ import annotations

from oslo_config import cfg
from oslo_log import log

from monasca_common.kafka.errors import ConfigurationError

PROJECT = "monasca-common"
# What these log of a healthy start and stop is in the one line that the service logs itself.
_QUIET = ("cotyledon=WARNING", "gunicorn=WARNING", "py4j=WARNING")
_ELSEWHERE = ("log_file", "log_dir", "use_journal", "use_syslog")


def register_logging(conf: cfg.ConfigOpts) -> None:
    """Before files are read: register the options of oslo.log."""
    log.register_options(conf)
    conf.set_default("default_log_levels", [*log.get_default_log_levels(), *_QUIET])


def start_logging(conf: cfg.ConfigOpts) -> None:
    """As ``conf``, which was read, says; to standard error unless it names something else, because standard output is
    for what a command has to say. Raises `ConfigurationError`."""
    if not any(conf[name] for name in _ELSEWHERE):
        conf.set_default("use_stderr", True)
    try:
        log.setup(conf, PROJECT)
    except (log.LogConfigError, OSError) as error:
        raise ConfigurationError(f"logs cannot be written as [DEFAULT] says: {error}") from error
