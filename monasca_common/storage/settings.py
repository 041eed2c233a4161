# SPDX-License-Identifier: Apache-2.0
"""The settings of a storage driver: frozen, declared here as the options of ``[storage]`` and ``[database]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from oslo_config import cfg

from monasca_common.kafka.config import (
    GroupReader,
    Option,
    OptionGroup,
    declared,
    made_of,
    option,
    options_of,
)
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.models.limits import MOST_DIMENSIONS
from monasca_common.storage.base import Kind
from monasca_common.storage.legacy import StorageUrl, old_place

STORAGE_GROUP = "storage"
DATABASE_GROUP = "database"
DEFAULT_RETENTION_DAYS = 45
_CENTURY_DAYS = 36_525
#: The measurement of alarm history in InfluxDB. A metric is a measurement of its own name, so none may have this one.
ALARM_HISTORY_MEASUREMENT = "alarm_state_history"
_RESERVED_NAMES: Mapping[str, frozenset[str]] = {"influxdb": frozenset({ALARM_HISTORY_MEASUREMENT})}
_EXAMPLE = "sqlite:////var/lib/monasca/monasca.sqlite or postgresql://user:password@host/monasca"


def _retention_option(kind: Kind) -> Option:
    return Option(
        f"{kind}_retention_days",
        type=cfg.IntOpt,
        minimum=1,
        maximum=_CENTURY_DAYS,
        unit="days",
        help=f"How many days {kind.replace('_', ' ')} are kept. Unset: retention_days.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Which rows are stored. The persister refuses others, and so does an API, which needs no database to know that.

    ``retention_days``: the kinds whose retention differs from ``default_retention_days``. ``reserved_names``: those
    that no metric may have, because of the driver.
    """

    default_retention_days: int = option(
        DEFAULT_RETENTION_DAYS,
        name="retention_days",
        minimum=1,
        maximum=_CENTURY_DAYS,
        unit="days",
        help="How many days rows are kept, by their event time. `monasca-common db prune` removes older ones. The API "
        "refuses older ones, and those that arrive at the persister become dead letters: give both the same value. "
        "Too small: late rows are refused too. Larger: the database takes more room.",
    )
    retention_days: Mapping[Kind, int] = field(
        default_factory=lambda: MappingProxyType({}), metadata=made_of(*map(_retention_option, Kind))
    )
    future_tolerance_seconds: int = option(
        86_400,
        minimum=0,
        maximum=_CENTURY_DAYS * 86_400,
        unit="seconds",
        help="How far in the future a row's time may be. The API refuses a row beyond it, and the persister makes it a "
        "dead letter, because its sender's clock is wrong: give both the same value. Too small: rows of senders whose "
        "clocks differ a little are refused. Too large: rows with a wrong time are stored, and on PostgreSQL each day "
        "that occurs gets a partition.",
    )
    max_dimensions: int = option(
        MOST_DIMENSIONS,
        minimum=1,
        maximum=10_000,
        unit="dimensions",
        help="How many dimensions a metric, a log or an event may have. The API refuses one with more, and the "
        "persister makes it a dead letter: give both the same value. Too small: valid metrics are refused. Too large: "
        "a few metrics make long rows and long answers.",
    )
    reserved_names: frozenset[str] = frozenset()

    def retention_of(self, kind: Kind) -> int:
        """The retention of a kind, in days."""
        return self.retention_days.get(kind, self.default_retention_days)


@dataclass(frozen=True, slots=True)
class StorageSettings(RowLimits):
    """The settings of a driver. ``connection`` is a SQLAlchemy URL with its password, so it is never shown."""

    driver: str = field(
        metadata=declared(
            default="sqlite",
            help="The database: sqlite (a file; one process writes), postgresql, influxdb (version 1.x; written "
            "at least once, never read), or another plugin in monasca_common.storage. [database] connection must "
            "agree.",
        )
    )
    # A default in the user's own folders would give the API and the persister, run by different users, different files.
    connection: str = field(
        repr=False,
        metadata=declared(
            secret=True,
            help=f"Where the database is, as a SQLAlchemy URL: {_EXAMPLE}. There is no default. Write $$ for each $.",
        ),
    )
    write_timeout_seconds: float = option(
        30.0,
        minimum=0.1,
        maximum=3600.0,
        unit="seconds",
        help="How long a write waits for the database before the database counts as unavailable and the write is "
        "repeated. Too small: large batches never finish. Too large: a database that hangs is noticed late.",
    )
    read_timeout_seconds: float = option(
        10.0,
        minimum=0.1,
        maximum=3600.0,
        unit="seconds",
        help="How long one read may take before it is cancelled. Too small: large queries fail. Too large: a slow "
        "query keeps its connection, and others wait.",
    )
    read_connections: int = option(
        10,
        minimum=1,
        maximum=1000,
        unit="connections",
        help="How many reads of one process may run in the database at once; further ones wait. Too small: requests "
        "wait or fail under load. Too large: the database runs out of connections.",
    )
    allow_insecure_credentials: bool = option(
        False,
        help="Send the password in [database] connection to InfluxDB on another machine without TLS (influxdb://), "
        "where everybody on the network path can read it. Without it that is refused at start: use influxdb+https://.",
    )


# The driver first, in sample files too.
_OPTIONS = sorted(options_of(StorageSettings), key=lambda each: each.name != "driver")
STORAGE = OptionGroup(
    STORAGE_GROUP,
    tuple(each for each in _OPTIONS if each.name != "connection"),
    removed={"max_results": "one read returns at most 100,000 rows"},
)
# Other libraries have options in this group too.
DATABASE = OptionGroup(DATABASE_GROUP, options_of(StorageSettings, "connection"), shared=True)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    return [STORAGE.listed(), DATABASE.listed()]


def storage_settings(conf: cfg.ConfigOpts) -> StorageSettings:
    """The settings in ``[storage]`` and ``[database]``; registers the options that it reads.

    Raises `ConfigurationError`, which names the option and quotes no secret.
    """
    read = GroupReader(conf, STORAGE)
    place = _place(conf)
    if not place.connection:
        raise _refused(f"is not set, and there is no default: write {_EXAMPLE}")
    if "://" not in place.connection:
        raise _refused(f"is not a URL (it is a secret and is not shown): write {_EXAMPLE}")
    return read.settings(
        StorageSettings,
        driver=place.driver,
        connection=place.connection,
        retention_days=_retention_days(read),
        reserved_names=_reserved_names(place.driver),
    )


def row_limits(conf: cfg.ConfigOpts) -> RowLimits:
    """The limits in ``[storage]``, without a database; the defaults, where a file has no such group.

    Raises `ConfigurationError`, which names the option.
    """
    read = GroupReader(conf, STORAGE)
    reserved = _reserved_names(_place(conf).driver)
    return read.settings(RowLimits, retention_days=_retention_days(read), reserved_names=reserved)


def _reserved_names(driver: str) -> frozenset[str]:
    return _RESERVED_NAMES.get(driver, frozenset())


def _retention_days(read: GroupReader) -> Mapping[Kind, int]:
    return MappingProxyType({kind: days for kind in Kind if (days := read[f"{kind}_retention_days"]) is not None})


def has_database(conf: cfg.ConfigOpts) -> bool:
    """Whether the configuration names a database. Raises `ConfigurationError` if an option cannot be read."""
    return bool(_place(conf).connection)


def _place(conf: cfg.ConfigOpts) -> StorageUrl:
    """Of ``[storage]`` and ``[database]``, or else of the groups of the old services."""
    read = GroupReader(conf, STORAGE)
    named = StorageUrl(read["driver"], GroupReader(conf, DATABASE)["connection"] or None)
    return old_place(conf, named, driver_is_set=read.is_set("driver"))


def dialect_of(connection: str) -> str:
    """``postgresql`` of ``postgresql+psycopg://…``: the name of the driver."""
    return connection.partition("://")[0].partition("+")[0]


def check_dialect(settings: StorageSettings) -> None:
    """Raise `ConfigurationError` unless the URL is one of the driver's."""
    dialect = dialect_of(settings.connection)
    if dialect != settings.driver:
        raise _refused(
            f"is a URL of {dialect!r}, but driver in group [{STORAGE_GROUP}] is {settings.driver!r}: make them agree, "
            f"such as {_EXAMPLE}"
        )


def _refused(rule: str) -> ConfigurationError:
    return ConfigurationError(f"connection in group [{DATABASE_GROUP}] {rule}")
