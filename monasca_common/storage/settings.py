# SPDX-License-Identifier: Apache-2.0
"""The settings of storage drivers, declared as the options of ``[storage]`` and ``[database]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from oslo_config import cfg

from monasca_common.kafka.config import GroupReader, Option, OptionGroup, declared, made_of, option, options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.models.limits import MOST_DIMENSIONS
from monasca_common.storage.base import Kind
from monasca_common.storage.legacy import StorageUrl, old_place

STORAGE_GROUP = "storage"
DATABASE_GROUP = "database"
DEFAULT_RETENTION_DAYS = 45
_CENTURY_DAYS = 36_525
#: The measurement of alarm history in InfluxDB. A metric with this name is refused.
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
        help=f"The retention of {kind.replace('_', ' ')}, in days. Unset: retention_days.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """The rules for stored rows. The persister and the API refuse other rows.

    ``retention_days``: the retention of kinds for which it differs from ``default_retention_days``. ``reserved_names``:
    names that the driver reserves and that metrics must not have.
    """

    default_retention_days: int = option(
        DEFAULT_RETENTION_DAYS,
        name="retention_days",
        minimum=1,
        maximum=_CENTURY_DAYS,
        unit="days",
        help="The number of days for which rows are kept, by event time. `monasca-common db prune` removes older rows. "
        "The API refuses older rows, and the persister sends them to the dead-letter topic; use the same value for "
        "both. Too small: late rows are refused. Too large: the database needs more space.",
    )
    retention_days: Mapping[Kind, int] = field(
        default_factory=lambda: MappingProxyType({}), metadata=made_of(*map(_retention_option, Kind))
    )
    future_tolerance_seconds: int = option(
        86_400,
        minimum=0,
        maximum=_CENTURY_DAYS * 86_400,
        unit="seconds",
        help="How far in the future the time of a row may be. The API refuses later rows, because the sender's clock "
        "is wrong, and the persister sends them to the dead-letter topic; use the same value for both. Too small: rows "
        "of senders whose clocks differ slightly are refused. Too large: rows with a wrong time are stored, and "
        "PostgreSQL creates a partition for the day of each such row.",
    )
    max_dimensions: int = option(
        MOST_DIMENSIONS,
        minimum=1,
        maximum=10_000,
        unit="dimensions",
        help="The maximum number of dimensions of a metric, log or event. The API refuses documents that exceed it, "
        "and the persister sends them to the dead-letter topic; use the same value for both. Too small: valid metrics "
        "are refused. Too large: even a few metrics cause long rows and responses.",
    )
    reserved_names: frozenset[str] = frozenset()

    def retention_of(self, kind: Kind) -> int:
        """Return the retention of a kind, in days."""
        return self.retention_days.get(kind, self.default_retention_days)


@dataclass(frozen=True, slots=True)
class StorageSettings(RowLimits):
    """The settings of a driver. ``connection`` is a SQLAlchemy URL with its password, so it is never shown."""

    driver: str = field(
        metadata=declared(
            default="sqlite",
            help="The database: sqlite (a file; one process writes), postgresql, influxdb (version 1.x; written "
            "at least once, never read), prometheus (a receiver of remote write; only metrics, never read), or another "
            "plugin in monasca_common.storage. [database] connection must be a URL of that driver.",
        )
    )
    # If the default were in a user's folder, an API and a persister of different users would use different files.
    connection: str = field(
        repr=False,
        metadata=declared(
            secret=True,
            help=f"The SQLAlchemy URL of the database: {_EXAMPLE}. There is no default. Write $$ for each $.",
        ),
    )
    positions_connection: str | None = option(
        None,
        secret=True,
        help="The SQLAlchemy URL of a SQLite file or a PostgreSQL database that stores Kafka offsets if the driver is "
        "prometheus, which requires it; other drivers ignore it. Write $$ for each $.",
    )
    write_timeout_seconds: float = option(
        30.0,
        minimum=0.1,
        maximum=3600.0,
        unit="seconds",
        help="The time-out of a write, after which the database counts as unavailable and the write is repeated. Too "
        "small: large batches never finish. Too large: a hanging database is detected late.",
    )
    read_timeout_seconds: float = option(
        10.0,
        minimum=0.1,
        maximum=3600.0,
        unit="seconds",
        help="The time-out of a read, which is then cancelled. Too small: large queries fail. Too large: slow queries "
        "occupy connections, and other queries wait.",
    )
    read_connections: int = option(
        10,
        minimum=1,
        maximum=1000,
        unit="connections",
        help="The maximum number of concurrent reads of one process; further reads wait. Too small: requests wait or "
        "fail under load. Too large: the database runs out of connections.",
    )
    allow_insecure_credentials: bool = option(
        False,
        help="Send the password in [database] connection to InfluxDB or a receiver of remote write on another machine "
        "without TLS (influxdb://, prometheus://), where it can be read on the network path. If false, such a "
        "connection is refused at start: use influxdb+https:// or prometheus+https://.",
    )


# The driver is the first option in sample files.
_OPTIONS = sorted(options_of(StorageSettings), key=lambda each: each.name != "driver")
_URLS = ("connection", "positions_connection")
STORAGE = OptionGroup(
    STORAGE_GROUP,
    tuple(each for each in _OPTIONS if each.name not in _URLS),
    removed={"max_results": "one read returns at most 100,000 rows"},
)
# Other libraries also have options in this group.
DATABASE = OptionGroup(DATABASE_GROUP, options_of(StorageSettings, *_URLS), shared=True)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return every group with its options, for oslo.config's sample generator."""
    return [STORAGE.listed(), DATABASE.listed()]


def storage_settings(conf: cfg.ConfigOpts) -> StorageSettings:
    """Read ``[storage]`` and ``[database]``.

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
        positions_connection=GroupReader(conf, DATABASE)["positions_connection"],
        retention_days=_retention_days(read),
        reserved_names=_reserved_names(place.driver),
    )


def row_limits(conf: cfg.ConfigOpts) -> RowLimits:
    """Read the limits in ``[storage]``, which need no database.

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
    """Return whether the configuration names a database. Raises `ConfigurationError` for an unreadable option."""
    return bool(_place(conf).connection)


def _place(conf: cfg.ConfigOpts) -> StorageUrl:
    """Read ``[storage]`` and ``[database]``, or the groups of the old services."""
    read = GroupReader(conf, STORAGE)
    named = StorageUrl(read["driver"], GroupReader(conf, DATABASE)["connection"] or None)
    return old_place(conf, named, driver_is_set=read.is_set("driver"))


def dialect_of(connection: str) -> str:
    """Return the driver in a URL: ``postgresql`` for ``postgresql+psycopg://…``."""
    return connection.partition("://")[0].partition("+")[0]


def check_dialect(settings: StorageSettings) -> None:
    """Raise `ConfigurationError` unless the URL belongs to the driver."""
    dialect = dialect_of(settings.connection)
    if dialect != settings.driver:
        raise _refused(
            f"is a URL of {dialect!r}, but driver in group [{STORAGE_GROUP}] is {settings.driver!r}: change one of "
            f"them; examples of URLs are {_EXAMPLE}"
        )


def _refused(rule: str) -> ConfigurationError:
    return ConfigurationError(f"connection in group [{DATABASE_GROUP}] {rule}")
