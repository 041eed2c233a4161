# SPDX-License-Identifier: Apache-2.0
"""The contract of notifiers, and what each is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oslo_config import cfg

from monasca_common.notification.addresses import destination
from monasca_common.notification.http_sender import HttpSender
from monasca_common.notification.notice import Notice
from monasca_common.notification.texts import Texts


@dataclass(frozen=True, slots=True)
class Tools:
    """Shared by all notifiers; thread-safe."""

    http: HttpSender
    texts: Texts

    def allowing(self, networks: Sequence[str]) -> Tools:
        """Return tools that may also send to these networks."""
        return replace(self, http=self.http.allowing(networks))


class Notifier(ABC):
    """Sends notices of one type of method. Several threads call it at once."""

    @classmethod
    @abstractmethod
    def configured(cls, conf: cfg.ConfigOpts, tools: Tools) -> Notifier:
        """With the options of its own group. Raises `ConfigurationError`."""

    @classmethod
    def address_fault(cls, _address: str) -> str | None:
        """What is wrong with the form of an address, such as "is not a URL"; ``None``: nothing.

        The API asks this when a method is made. Nothing may be connected to.
        """
        return None

    def destination(self, address: str) -> str:
        """Which server an address leads to: at each a bounded number is sent at once, whoever's methods they are.

        Here it is the host of a URL, and the notifier itself for addresses that are none.
        """
        return destination(address) or type(self).__name__

    @abstractmethod
    def send(self, notice: Notice, address: str) -> str | None:
        """Returns once the receiver has taken the notice. The notice's id travels with it.

        The value says in a few words what the receiver answered, and is shown to the tenant.

        Raises `SendFailed` if another attempt may succeed, and `SendRefused` if none can.
        """
