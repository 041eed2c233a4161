# SPDX-License-Identifier: Apache-2.0
"""The storage options of the old persister and the old API: ``[influxdb]``, ``[repositories]`` and others.

``[influxdb]`` is translated into a driver and a URL. Each other option is logged once, with its replacement.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import quote

from oslo_config import cfg

from monasca_common.kafka.config import GroupReader, OptionGroup, config_file, option, options_of
from monasca_common.kafka.config.legacy import Action, OldGroup, OldOption
from monasca_common.runtime.logs import shown_url

_WRITE = "write [storage] driver = postgresql and [database] connection = postgresql://user:password@host/monasca"
_WRITE_INFLUXDB = "write [storage] driver = influxdb and [database] connection = influxdb://user:password@host:8086/mon"
_ONE_STORAGE = "[storage] driver stores everything that the persister reads"
_ALARMS = "alarm definitions, alarms and notification methods are in the database of [alarms] connection"

INFLUXDB = OldGroup(
    "influxdb",
    "no service reads this option; correct its name or remove it",
    (
        OldOption("ip_address", Action.SERVICE, "the host of [database] connection"),
        OldOption("port", Action.SERVICE, "the port of [database] connection"),
        OldOption("database_name", Action.SERVICE, "the path of [database] connection"),
        OldOption("user", Action.SERVICE, "the user of [database] connection"),
        OldOption("password", Action.SERVICE, "the password of [database] connection"),
        OldOption("ssl", Action.SERVICE, "influxdb+https in [database] connection"),
        OldOption("verify_ssl", Action.SERVICE, "certificates are always verified"),
        OldOption("db_per_tenant", Action.SERVICE, "true cannot be translated"),
        OldOption(
            "default_retention_hours",
            Action.IGNORED,
            "write [storage] retention_days, and ?retention_policy= in [database] connection for a retention policy of "
            "InfluxDB",
        ),
        OldOption("batch_size", Action.IGNORED, "write batch_size in the consumer's group, such as [kafka_metrics]"),
    ),
)
REPOSITORIES = OldGroup(
    "repositories",
    "no service reads this option; correct its name or remove it",
    (
        OldOption("metrics_driver", Action.SERVICE, "[storage] driver, if the class is for InfluxDB"),
        OldOption("alarm_state_history_driver", Action.IGNORED, _ONE_STORAGE),
        OldOption("events_driver", Action.IGNORED, f"{_ONE_STORAGE}; events require postgresql or sqlite"),
        OldOption(
            "ignore_parse_point_error",
            Action.IGNORED,
            "a message that cannot be stored goes to dead_letter_topic, and the others are stored",
        ),
        OldOption("alarm_definitions_driver", Action.IGNORED, _ALARMS),
        OldOption("alarms_driver", Action.IGNORED, _ALARMS),
        OldOption("notifications_driver", Action.IGNORED, _ALARMS),
        OldOption("notification_method_type_driver", Action.IGNORED, _ALARMS),
    ),
)
CASSANDRA = OldGroup(
    "cassandra",
    f"nothing is stored in Cassandra; remove the group; without other storage, {_WRITE}, and write the retention in "
    "[storage] retention_days",
)
ELASTICSEARCH = OldGroup(
    "elasticsearch", f"events are not stored in Elasticsearch; remove the group; for events, {_WRITE}"
)
OLD_GROUPS = (INFLUXDB, REPOSITORIES, CASSANDRA, ELASTICSEARCH)

_DEFAULT_USER = "mon_persister"  # the old persister's default user if only a password was set
_OLD_DATABASES = ("mysql", "mariadb")  # the old API's database of alarm definitions


@dataclass(frozen=True, slots=True)
class StorageUrl:
    """A driver and the URL of its database, which is secret, or ``None`` if it has no database."""

    driver: str
    connection: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class OldInfluxdb:
    """The server in ``[influxdb]``, with the defaults of the old services."""

    ip_address: str = option("127.0.0.1", help="The server's name or address.")
    port: int = option(8086, type=cfg.PortOpt, help="The server's port.")
    database_name: str = option("mon", help="The database.")
    user: str | None = option(None, help="The user.")
    password: str | None = option(None, secret=True, help="The user's password.")
    ssl: bool = option(False, help="Whether TLS is used.")
    verify_ssl: bool = option(False, help="Whether the server's certificate is verified.")
    db_per_tenant: bool = option(False, help="Whether each tenant has its own database.")

    @property
    def connection(self) -> str:
        """The URL of the server, with the password."""
        user = self.user or (_DEFAULT_USER if self.password else None)
        secret = f":{quote(self.password, safe='')}" if self.password else ""
        host = f"[{self.ip_address}]" if ":" in self.ip_address else self.ip_address
        return (
            f"influxdb{'+https' if self.ssl else ''}://{quote(user, safe='') + secret + '@' if user else ''}"
            f"{host}:{self.port}/{self.database_name}"
        )


@dataclass(frozen=True, slots=True)
class OldRepositories:
    """The classes in ``[repositories]``."""

    metrics_driver: str | None = option(None, help="The class that stores metrics, or reads them.")


_INFLUXDB = OptionGroup(INFLUXDB.name, options_of(OldInfluxdb), shared=True)
_REPOSITORIES = OptionGroup(REPOSITORIES.name, options_of(OldRepositories), shared=True)


def old_place(conf: cfg.ConfigOpts, named: StorageUrl, *, driver_is_set: bool) -> StorageUrl:
    """Return the storage of ``[storage]`` and ``[database]`` (``named``), or the storage of old groups.

    Each option of an old group is logged once, with its replacement. Raises `ConfigurationError` for an unreadable
    value.
    """
    read = GroupReader(conf, _INFLUXDB)
    server, metrics_driver = read.settings(OldInfluxdb), GroupReader(conf, _REPOSITORIES)["metrics_driver"]
    for group in OLD_GROUPS:
        config_file.log_old_group(conf, group)
    given = [each.name for each in _INFLUXDB.options if not each.secret and read.is_set(each.name)]
    given += ["password"] if server.password else []
    if (given or metrics_driver) and not driver_is_set and (named.connection or "").startswith(_OLD_DATABASES):
        config_file.warn_once(
            "[database] connection is ignored, because it is the MySQL database of an earlier API, and [storage] "
            f"driver is not set: {_ALARMS}"
        )
        named = replace(named, connection=None)
    reason = _untranslated(named, server, metrics_driver, driver_is_set=driver_is_set)
    if metrics_driver and (reason or not given):
        reason = reason or f"[influxdb] names no server, {_WRITE_INFLUXDB}"
        config_file.warn_once(f"[repositories] metrics_driver is ignored: {reason}")
    if given and reason:
        config_file.warn_once(f"[influxdb] is ignored ({', '.join(sorted(given))}): {reason}")
    if not given or reason:
        return named
    connection = server.connection
    _log_translation(server, [*sorted(given), *(["[repositories] metrics_driver"] if metrics_driver else [])])
    return StorageUrl("influxdb", connection)


def _untranslated(
    named: StorageUrl, server: OldInfluxdb, metrics_driver: str | None, *, driver_is_set: bool
) -> str | None:
    """Return the reason why ``[influxdb]`` is not used, or ``None`` if it is used."""
    if named.connection:
        return "[storage] driver and [database] connection take effect"
    if driver_is_set and named.driver != "influxdb":
        return f"[storage] driver = {named.driver} takes effect; set its [database] connection"
    if metrics_driver and "influxdb" not in metrics_driver.lower():
        return f"the class in [repositories] metrics_driver has no driver here; {_WRITE}"
    if server.db_per_tenant:
        return f"db_per_tenant = true is not supported; one database has the rows of all tenants: {_WRITE_INFLUXDB}"
    return None


def _log_translation(server: OldInfluxdb, given: list[str]) -> None:
    hidden = ", with user and password" if server.password else ""
    config_file.warn_once(
        f"[influxdb] {', '.join(given)}: read as [storage] driver = influxdb and [database] connection = "
        f"{shown_url(server.connection)}{hidden}: write these instead"
    )
    if server.ssl and not server.verify_ssl:
        config_file.warn_once(
            "[influxdb] verify_ssl = false is ignored: the certificate is always verified; write [database] connection "
            "with ?ca_file=/path/to/ca.pem if the operating system does not trust its authority"
        )
