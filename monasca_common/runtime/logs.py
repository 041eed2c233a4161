# SPDX-License-Identifier: Apache-2.0
"""Logging of services: the set-up of oslo.log, and the start and stop messages, which contain no secrets."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

from oslo_config import cfg
from oslo_log import log

from monasca_common.kafka.errors import ConfigurationError

PROJECT = "monasca-common"
# The service itself logs its start and stop.
_QUIET = ("cotyledon=WARNING", "gunicorn=WARNING", "py4j=WARNING")
_OTHER_DESTINATIONS = ("log_file", "log_dir", "use_journal", "use_syslog")


def register_logging(conf: cfg.ConfigOpts) -> None:
    """Register the oslo.log options, before files are read."""
    log.register_options(conf)
    conf.set_default("default_log_levels", [*log.get_default_log_levels(), *_QUIET])


def start_logging(conf: cfg.ConfigOpts) -> None:
    """Log to the destination in ``[DEFAULT]``, or to standard error by default. Raises `ConfigurationError`."""
    if not any(conf[name] for name in _OTHER_DESTINATIONS):
        conf.set_default("use_stderr", True)
    try:
        log.setup(conf, PROJECT)
    except (log.LogConfigError, OSError) as error:
        raise ConfigurationError(
            f"logging cannot be set up with the [DEFAULT] options ({error}): correct log_file, log_dir or the levels"
        ) from error


def started(service: str, **facts: object) -> str:
    """Return the start message: the service, its version, and all facts that are not empty."""
    return _line(service, "started", facts)


def stopped(service: str, **facts: object) -> str:
    return _line(service, "stopped", facts)


def _line(service: str, event: str, facts: dict[str, object]) -> str:
    version = importlib.metadata.version("monasca-common")
    shown = [f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value not in (None, "")]
    return f"{service} {version} {event}{': ' if shown else ''}{'; '.join(shown)}"


def joined(values: Iterable[object]) -> str:
    """Return the distinct values in order, separated by commas."""
    return ", ".join(dict.fromkeys(map(str, values)))


def shown_url(url: str) -> str:
    """Return a URL without user, password and query, which can contain secrets. A path is returned unchanged."""
    if url.startswith("/"):
        return url
    scheme, separator, rest = url.partition("://")
    before, _, location = rest.rpartition("@")
    if not separator or "?" in before:  # where a password starts is ambiguous, so hide everything
        return f"{scheme}://(not shown)" if separator else "(not shown)"
    return f"{scheme}://{location.partition('?')[0]}"
