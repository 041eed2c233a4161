# SPDX-License-Identifier: Apache-2.0
"""The contract of notifiers, the tools that they share, and the loading of notifiers by the type of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from oslo_config import cfg

from monasca_common.alarms.notification_methods import NOTIFIERS
from monasca_common.kafka import entry_point
from monasca_common.notification.addresses import endpoint
from monasca_common.notification.errors import AddressRefused
from monasca_common.notification.http_client import HttpClient
from monasca_common.notification.notification import Notification
from monasca_common.notification.settings import http_settings
from monasca_common.notification.texts import Texts

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that all notifiers share. Thread-safe."""

    http: HttpClient
    texts: Texts


class Notifier(ABC):
    """Sends notifications of one type of method. Thread-safe."""

    @classmethod
    @abstractmethod
    def configured(cls, conf: cfg.ConfigOpts, tools: Tools) -> Notifier:
        """Return a notifier with the options of its own group of ``conf``. Raises `ConfigurationError`."""

    @classmethod
    def address_fault(cls, _address: str) -> str | None:
        """Return the fault in the form of an address, such as "is not a URL", or ``None`` if it is valid.

        The API calls it when a method is created. It must not open connections.
        """
        return None

    def destination(self, address: str) -> str:
        """Return the server of an address, because the number of concurrent notifications to it is limited.

        By default, this is the host of a URL, or the name of the class for other addresses.
        """
        try:
            return endpoint(address).host.rstrip(".")
        except AddressRefused:
            return type(self).__name__

    @abstractmethod
    def send(self, notification: Notification, address: str) -> str | None:
        """Send the notification with its id, and return when the receiver has accepted it.

        The return value is the receiver's response in a few words, which tenants can read.

        Raises `SendFailed` if another attempt may succeed, and `SendRefused` if no attempt can succeed.
        """


class OwnNotifier(Notifier, Generic[S]):
    """A notifier of this package, with settings of the type ``S``."""

    def __init__(self, settings: S, tools: Tools) -> None:
        self._settings = settings
        self._tools = tools

    @staticmethod
    @abstractmethod
    def read(conf: cfg.ConfigOpts) -> Any:
        """Return the settings of the notifier's group. Raises `ConfigurationError`."""

    @classmethod
    def configured(cls, conf: cfg.ConfigOpts, tools: Tools) -> Notifier:
        return cls(cls.read(conf), tools)


def load_notifiers(conf: cfg.ConfigOpts, *types: str) -> list[Notifier]:
    """Return a new notifier for each type, regardless of its case. The notifiers share one set of tools.

    Raises `ConfigurationError` for an unknown type, or for invalid options in its group.
    """
    settings = http_settings(conf)
    tools = Tools(HttpClient(settings), Texts(settings.templates_folder))
    plugins = [entry_point(NOTIFIERS, each.lower(), option="type", extra="notification") for each in types]
    return [plugin.configured(conf, tools) for plugin in plugins]
