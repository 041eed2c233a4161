# SPDX-License-Identifier: Apache-2.0
"""Loads notifiers by the type of a method."""

from __future__ import annotations

from oslo_config import cfg

from monasca_common.alarms import notification_methods
from monasca_common.alarms.notification_methods import NOTIFIERS
from monasca_common.kafka import entry_point
from monasca_common.notification.http_client import HttpClient
from monasca_common.notification.notifiers.base import Notifier, Tools
from monasca_common.notification.settings import http_settings
from monasca_common.notification.texts import Texts


def types() -> list[str]:
    """Those that are installed with what they need, as methods write them."""
    return list(notification_methods.types())


class Notifiers:
    """One notifier for each type that is asked for. ``type``: in any case. Not thread-safe while it loads."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        settings = http_settings(conf)
        self._conf = conf
        self._tools = Tools(HttpClient(settings), Texts(settings.templates_folder))

    def load(self, type: str) -> Notifier:  # noqa: A002 - what a method calls it
        """Raises `ConfigurationError` for an unknown type, and for options of its group that are refused."""
        plugin: Notifier = entry_point(NOTIFIERS, type.lower(), option="type", extra="notification")
        return plugin.configured(self._conf, self._tools)
