# SPDX-License-Identifier: Apache-2.0
"""Loads notifiers by the type of a method."""

from __future__ import annotations

from oslo_config import cfg

from monasca_common.alarms.notification_methods import NOTIFIERS
from monasca_common.kafka import entry_point
from monasca_common.notification.http_client import HttpClient
from monasca_common.notification.notifiers.base import Notifier, Tools
from monasca_common.notification.settings import http_settings
from monasca_common.notification.texts import Texts


class Notifiers:
    """Loads notifiers. Not thread-safe."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        settings = http_settings(conf)
        self._conf = conf
        self._tools = Tools(HttpClient(settings), Texts(settings.templates_folder))

    def load(self, type: str) -> Notifier:  # noqa: A002 - what a method calls it
        """Return a new notifier of a type, in upper or lower case. Raises `ConfigurationError` for an unknown type, and
        for refused options of its group."""
        plugin: Notifier = entry_point(NOTIFIERS, type.lower(), option="type", extra="notification")
        return plugin.configured(self._conf, self._tools)
