# SPDX-License-Identifier: Apache-2.0
"""Settings of the alarms database: the options of ``[alarms]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oslo_config import cfg

from monasca_common.kafka.config import GroupReader, OptionGroup, option, options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.settings import STORAGE, StorageSettings, dialect_of, has_database, storage_settings

ALARMS_GROUP = "alarms"
SQL_DRIVERS = ("postgresql", "sqlite")


@dataclass(frozen=True, slots=True)
class AlarmsSettings:
    """The settings of alarms. ``connection`` (a SQLAlchemy URL with its password) and ``address_keys`` are never
    shown."""

    connection: str | None = option(
        None,
        secret=True,
        unset="[database] connection, if [storage] driver is sqlite or postgresql",
        help="The SQL database of alarm definitions, alarms and notification methods, as a SQLAlchemy URL: "
        "postgresql://user:password@host/monasca or sqlite:////var/lib/monasca/monasca.sqlite. Use the same URL for "
        "the API and the pipeline. Write $$ for each $.",
    )
    address_keys: tuple[str, ...] = option(
        (),
        secret=True,
        help="The Fernet keys that encrypt the addresses of notification methods in the database: the first key "
        "encrypts, and all keys decrypt. Use the same keys for the API and the notification service. After a change, "
        "run monasca-common notification rotate-keys. Unset: addresses are stored as plain text.",
    )


ALARMS = OptionGroup(ALARMS_GROUP, options_of(AlarmsSettings))


class NoAlarmsDatabase(ConfigurationError):
    """The configuration has no database that can store alarm definitions."""


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the group with its options, for oslo.config's generator of sample files."""
    return [ALARMS.listed()]


def database_settings(conf: cfg.ConfigOpts) -> StorageSettings:
    """Return the settings of the alarms database, with the limits of ``[storage]``.

    Raises `NoAlarmsDatabase`, and `ConfigurationError` for an option that cannot be read."""
    connection = own_connection(conf)
    if connection is not None:
        return GroupReader(conf, STORAGE).settings(
            StorageSettings, driver=dialect_of(connection), connection=connection, positions_connection=None
        )
    if not has_database(conf):
        raise NoAlarmsDatabase(
            f"neither connection in group [{ALARMS_GROUP}] nor connection in group [database] is set: alarm "
            "definitions, alarms and notification methods need one of them"
        )
    settings = storage_settings(conf)
    if settings.driver not in SQL_DRIVERS:
        raise NoAlarmsDatabase(
            f"[storage] driver is {settings.driver}, which cannot store alarm definitions, alarms and notification "
            f"methods: set connection in group [{ALARMS_GROUP}] to a URL of postgresql or sqlite"
        )
    return settings


def own_connection(conf: cfg.ConfigOpts) -> str | None:
    """Return ``[alarms] connection``, if it is set. Raises `ConfigurationError` if it is not a URL of a SQL
    database."""
    read = GroupReader(conf, ALARMS)
    connection: str | None = read["connection"] or None
    if connection is not None and dialect_of(connection) not in SQL_DRIVERS:
        raise read.error(
            "connection",
            "is not a URL of postgresql or sqlite (it is a secret and is not shown): write "
            "postgresql://user:password@host/monasca",
        )
    return connection
