# SPDX-License-Identifier: Apache-2.0
"""The options of ``[storage]`` and ``[database]``: which database, how long it keeps rows, what a read may cost."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from oslo_config import cfg

from monasca_common.kafka.config import config_file
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.options import SecretOpt
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import DEFAULT_RETENTION_DAYS, StorageSettings

STORAGE_GROUP = "storage"
DATABASE_GROUP = "database"
_CENTURY_DAYS = 36_525
_EXAMPLE = "sqlite:////var/lib/monasca/monasca.sqlite or postgresql://user:password@host/monasca"


def _retention_option(kind: Kind) -> cfg.Opt:
    return cfg.IntOpt(
        f"{kind}_retention_days",
        min=1,
        max=_CENTURY_DAYS,
        help=f"The same for {kind.replace('_', ' ')} alone. Unset: retention_days.",
    )


STORAGE_OPTIONS = [
    cfg.StrOpt(
        "driver",
        default="sqlite",
        help="What rows are stored in: sqlite (a file; one process writes), postgresql, influxdb (version 1.x; written "
        "at least once, never read), or another plugin in monasca_common.storage. [database] connection must agree.",
    ),
    cfg.IntOpt(
        "retention_days",
        default=DEFAULT_RETENTION_DAYS,
        min=1,
        max=_CENTURY_DAYS,
        help="How many days rows are kept, by their own time. What is older is removed by `monasca-common db prune`; "
        "older rows that arrive are refused, and so become dead letters.",
    ),
    *map(_retention_option, Kind),
    cfg.IntOpt(
        "future_tolerance_seconds",
        default=86_400,
        min=0,
        max=7 * 86_400,
        help="How far in the future a row's time may lie. What is beyond is refused: its clock is wrong.",
    ),
    cfg.FloatOpt(
        "write_timeout_seconds",
        default=30.0,
        min=0.1,
        max=3600.0,
        help="How long a write waits for the database before it counts as unavailable and is tried again.",
    ),
    cfg.FloatOpt(
        "read_timeout_seconds",
        default=10.0,
        min=0.1,
        max=3600.0,
        help="How long one read may take before it is given up.",
    ),
    cfg.IntOpt(
        "read_connections",
        default=10,
        min=1,
        max=1000,
        help="How many reads of one process may be at work in the database at once; further ones wait their turn.",
    ),
    cfg.IntOpt(
        "max_results",
        default=100_000,
        min=1,
        max=10_000_000,
        help="How many rows one read may bring into memory before it is refused as too large.",
    ),
]

# A default in the user's own folders would give the API and the persister, run by different users, different files.
DATABASE_OPTIONS = [
    SecretOpt(
        "connection",
        help=f"Where the database is, as a SQLAlchemy URL: {_EXAMPLE}. There is no default. Write $$ for each $.",
    ),
]


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    return [(STORAGE_GROUP, STORAGE_OPTIONS), (DATABASE_GROUP, DATABASE_OPTIONS)]


def storage_settings(conf: cfg.ConfigOpts) -> StorageSettings:
    """What ``[storage]`` and ``[database]`` say; registers the options that it reads.

    Raises `ConfigurationError`, which names the option and quotes no secret.
    """
    for group, options in list_opts():
        conf.register_opts(options, group=group)
    config_file.check_parsed(conf)
    config_file.check_group(conf, STORAGE_GROUP)
    read = conf[STORAGE_GROUP]
    try:
        return StorageSettings(
            driver=read.driver,
            connection=_connection(conf),
            default_retention_days=read.retention_days,
            retention_days=MappingProxyType(
                {kind: days for kind in Kind if (days := read[f"{kind}_retention_days"]) is not None}
            ),
            future_tolerance_seconds=read.future_tolerance_seconds,
            write_timeout_seconds=read.write_timeout_seconds,
            read_timeout_seconds=read.read_timeout_seconds,
            read_connections=read.read_connections,
            max_results=read.max_results,
        )
    except (cfg.Error, ValueError) as error:
        broken = config_file.broken_rule(error)
        raise ConfigurationError(f"group [{STORAGE_GROUP}] is refused, correct it: {broken}") from None


def _connection(conf: cfg.ConfigOpts) -> str:
    connection, readable = None, True
    try:
        connection = conf[DATABASE_GROUP].connection
    except (cfg.Error, ValueError):  # its text may quote the value
        readable = False
    if not readable:
        raise _refused("cannot be read: a $ in its value must be written $$ (the value is a secret and is not shown)")
    if not connection:
        raise _refused(f"is not set, and there is no default: write {_EXAMPLE}")
    if "://" not in connection:
        raise _refused(f"is no URL (it is a secret and is not shown): write {_EXAMPLE}")
    return str(connection)


def check_dialect(settings: StorageSettings) -> None:
    """Raise `ConfigurationError` unless the URL is one of the driver's."""
    dialect = settings.connection.partition("://")[0].partition("+")[0]
    if dialect != settings.driver:
        raise _refused(
            f"is a URL of {dialect!r}, but driver in group [{STORAGE_GROUP}] is {settings.driver!r}: make them agree, "
            f"such as {_EXAMPLE}"
        )


def _refused(rule: str) -> ConfigurationError:
    return ConfigurationError(f"connection in group [{DATABASE_GROUP}] {rule}")
