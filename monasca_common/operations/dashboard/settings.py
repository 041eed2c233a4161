# SPDX-License-Identifier: Apache-2.0
"""The settings of the dashboard, declared as the options of ``[dashboard]``."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from oslo_config import cfg

from monasca_common.kafka.config import GroupReader, OptionGroup, made_of, option, options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings

DASHBOARD_GROUP = "dashboard"


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """The settings of the dashboard. Times are in seconds."""

    host: str = option(
        "127.0.0.1",
        help="The address to listen on. An address that other machines can reach requires a login, and TLS or "
        "tls_at_proxy.",
    )
    port: int = option(8076, type=cfg.PortOpt, help="The port to listen on.")
    tls_certificate: str | None = option(
        None, help="The file with the dashboard's certificate and its intermediate certificates, as PEM."
    )
    tls_key: str | None = option(None, help="The file with the private key of tls_certificate, as PEM.")
    tls_at_proxy: bool = option(
        False,
        help="Whether browsers reach the dashboard only through a TLS proxy. If true, the dashboard can listen without "
        "TLS on any address and accepts any host name, and browsers send its cookies only over TLS. Without such a "
        "proxy, logins fail.",
    )
    login: Literal["keystone", "file", "none"] = option(
        "keystone",
        choices={
            "keystone": "Keystone users with a role that [oslo_policy] allows",
            "file": "users in password_file",
            "none": "no login; accepted only on a loopback address",
        },
        help="How users log in.",
    )
    password_file: str | None = option(
        None,
        help="The file of users for login = file, with the lines that `monasca-common dashboard password` prints.",
    )
    keystone_url: str | None = option(
        None, help="The URL of Keystone's API v3 for login = keystone, such as https://keystone.example.org/v3."
    )
    keystone_ca_file: str | None = option(
        None, help="The CA certificates for Keystone, as PEM.", unset="the certificates of the system"
    )
    keystone_domain: str = option("Default", help="The Keystone domain of users and projects.")
    session_seconds: float = option(
        8 * 3600.0,
        minimum=60.0,
        maximum=7 * 86_400.0,
        unit="seconds",
        help="The maximum duration of a login in seconds. Too small: users log in often. Too large: anyone with access "
        "to a browser left open can view the dashboard.",
    )
    interval_seconds: float = option(
        10.0,
        minimum=1.0,
        maximum=3600.0,
        unit="seconds",
        help="Seconds between two checks of a panel. Too small: load on the brokers. Too large: problems are shown "
        "late.",
    )
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))

    @property
    def has_tls(self) -> bool:
        return self.tls_certificate is not None

    @property
    def browsers_have_tls(self) -> bool:
        return self.has_tls or self.tls_at_proxy

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the dashboard."""
        return is_loopback(self.host) and not self.tls_at_proxy


_DASHBOARD = OptionGroup(
    DASHBOARD_GROUP,
    options_of(DashboardSettings),
    removed={
        **REMOVED_STATUS,
        "source_timeout_seconds": "a panel waits 30 seconds for its source",
        "lag_window_seconds": "window_seconds in group [lag] is used",
        "api_timeout_seconds": "the dashboard does not query the API",
        "api_url": "the dashboard has no charts; Grafana draws them from the database",
        "api_ca_file": "the dashboard does not query the API",
        "login_attempts": "10 wrong passwords within five minutes are permitted",
    },
)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def dashboard_settings(conf: cfg.ConfigOpts) -> DashboardSettings:
    """Return the settings. Raises `ConfigurationError` for an invalid or unsafe combination."""
    read = GroupReader(conf, _DASHBOARD)
    settings = read.settings(DashboardSettings, status=read.settings(StatusSettings))
    for name in ("tls_certificate", "tls_key", "password_file", "keystone_ca_file"):
        path = getattr(settings, name)
        if path is not None and not Path(path).is_file():
            raise read.error(name, f"is {path}, which is not a file: correct the path")
    url = settings.keystone_url
    if url is not None and not _is_http_url(url):
        raise read.error("keystone_url", "is not a URL that begins with http:// or https://: correct it")
    if url is not None and "@" in urlsplit(url).netloc:
        raise read.error("keystone_url", "contains a user or a password, which the log would show: remove them")
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise read.error("tls_certificate", "and tls_key belong together: set both or neither")
    if settings.login == "file" and settings.password_file is None:
        raise read.error("password_file", "is not set, but login is file: name the file of users")
    if settings.login == "keystone" and settings.keystone_url is None:
        raise read.error(
            "keystone_url",
            "is not set, but login is keystone: set Keystone's URL, or set login to file or none",
        )
    _check_reach(read, settings)
    return settings


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid IPv6 address or port
        return False


def _check_reach(read: GroupReader, settings: DashboardSettings) -> None:
    if settings.is_local:
        return
    if settings.login == "none":
        where = "the proxy" if settings.tls_at_proxy else settings.host
        raise read.error("login", f"is none, but other machines reach {where}: set it to keystone or file")
    if not settings.browsers_have_tls:
        raise ConfigurationError(
            f"host in group [{DASHBOARD_GROUP}] is {settings.host}, which other machines reach without TLS: set "
            "tls_certificate and tls_key, or tls_at_proxy for a proxy with TLS"
        )


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the options for oslo.config's sample generator."""
    return [_DASHBOARD.listed()]
