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


def load_notifiers(conf: cfg.ConfigOpts, *types: str) -> list[Notifier]:
    """Return a new notifier for each type, regardless of its case. The notifiers share one set of tools.

    Raises `ConfigurationError` for an unknown type, or for invalid options in its group.
    """
    settings = http_settings(conf)
    tools = Tools(HttpClient(settings), Texts(settings.templates_folder))
    plugins = [entry_point(NOTIFIERS, each.lower(), option="type", extra="notification") for each in types]
    return [plugin.configured(conf, tools) for plugin in plugins]
