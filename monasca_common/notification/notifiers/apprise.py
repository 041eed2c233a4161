# SPDX-License-Identifier: Apache-2.0
"""Apprise: the services of this library, each with its own scheme of addresses, such as ``discord://id/token``.

The library opens its own connections. Therefore the operator lists the permitted schemes, and the address of each
connection is checked at the socket, which no redirect, second resolution or host in a query can avoid.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import logging
import re
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

from oslo_config import cfg

from monasca_common.notification.addresses import AddressRules, refusal
from monasca_common.notification.errors import AddressRefused, SendFailed, SendRefused
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import Notifier, Tools
from monasca_common.notification.send_deadline import SendDeadline
from monasca_common.notification.settings import FIXED_HOSTS, AppriseSettings, apprise_settings
from monasca_common.notification.texts import Texts

if importlib.util.find_spec("apprise") is None:  # so that the type is not offered without the library
    raise ModuleNotFoundError("No module named 'apprise'", name="apprise")

_FORM = re.compile(r"(?P<scheme>[A-Za-z0-9]+)://[^\s\x00-\x1f\x7f]+")
_CONNECTING = ("socket.connect", "socket.sendto", "socket.sendmsg")
#: The type of Apprise for a state: services open, update or close an incident by it.
_TYPES = {"ALARM": "failure", "OK": "success"}
_WARNING = "warning"
#: Attributes of services that identify an incident.
_INCIDENT_KEYS = ("dedup", "external_id", "thirdparty", "entity_id")
#: Actions that open an incident for each notification, whatever its type.
_OPENING = ("create", "trigger")
_guard: ContextVar[ConnectionGuard | None] = ContextVar("apprise_guard", default=None)


class AppriseNotifier(Notifier):
    def __init__(self, settings: AppriseSettings, rules: AddressRules, texts: Texts) -> None:
        _watch_connections()
        logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it logs parts of addresses, and payloads
        self._settings = settings
        self._rules = rules
        self._texts = texts

    @classmethod
    def configured(cls, conf: cfg.ConfigOpts, tools: Tools) -> AppriseNotifier:
        settings = apprise_settings(conf)
        return cls(settings, tools.http.allowing(settings.allowed_networks).rules, tools.texts)

    @classmethod
    def address_fault(cls, address: str) -> str | None:
        return None if _FORM.fullmatch(address) else "is not an address of Apprise, such as discord://id/token"

    def destination(self, address: str) -> str:
        """Return the service if it has fixed servers, otherwise the host in the address."""
        url = urlsplit(address)
        return url.scheme if url.scheme in FIXED_HOSTS else f"{url.scheme}://{url.hostname}"

    def send(self, notification: Notification, address: str) -> str:
        scheme = self._scheme(address)
        body, title = (
            f"{self._texts.text(notification)}\nNotification {notification.id}",
            self._texts.subject(notification),
        )
        with SendDeadline(self._settings.timeout) as deadline, _guarded(self._rules, deadline) as guard:
            service = self._service(scheme, address, notification)
            try:
                taken = service.notify(
                    body=body, title=title, notify_type=_TYPES.get(notification.change.new_state, _WARNING)
                )
                if taken and not guard.connections:
                    # Opsgenie closes only the alerts that this object opened, so the end is a separate alert.
                    taken = service.notify(body=body, title=title, notify_type=_WARNING)
            except Exception as error:
                if guard.refused is None:
                    raise SendFailed(f"{scheme}: {type(error).__name__}") from None  # its text may contain the address
                taken = False
        if guard.refused is not None:
            raise refusal(scheme, guard.refused)
        if not taken:
            late = f"no answer within {self._settings.timeout} s" if deadline.over else "the service did not accept it"
            raise SendFailed(f"{scheme}: {late}")
        if not guard.connections:
            raise SendRefused(f"{scheme} sends nothing for this address: remove its action and its mapping")
        return f"{scheme} accepted it"

    def _scheme(self, address: str) -> str:
        """Return the scheme. Raises `SendRefused` if it is not permitted, or if the environment names a proxy."""
        if (form := _FORM.fullmatch(address)) is None:
            raise AddressRefused("the address is not an address of Apprise: write discord://id/token")
        scheme = form["scheme"].lower()
        if scheme not in self._settings.schemes:
            raise AddressRefused(f"{scheme} is not in the list schemes of [apprise_notifier]: use one of these schemes")
        if set(urllib.request.getproxies_environment()) - {"no"}:
            raise SendRefused(
                "the environment of this service names a proxy, which Apprise would use and behind which addresses "
                "cannot be checked: unset it"
            )
        return scheme

    def _service(self, scheme: str, address: str, notification: Notification) -> Any:
        """Return an object of the library with the same limits as other notifiers."""
        import apprise

        asset = apprise.AppriseAsset(async_mode=False, secure_logging=True)
        service: Any = apprise.Apprise.instantiate(address, asset=asset)
        if service is None:
            raise AddressRefused(f"the address is not valid for {scheme}, or this service is not installed completely")
        service.redirects = False
        service.verify_certificate = True
        _identify(service, notification, urlsplit(address).query)
        service.socket_connect_timeout = service.socket_read_timeout = self._settings.timeout
        return service


def _identify(service: Any, notification: Notification, query: str) -> None:
    """Let the end of an alarm close the incident that the alarm opened, unless the address sets another key.

    By default, Apprise identifies an incident by the title, which names the state and not the alarm.
    """
    if getattr(service, "action", None) in _OPENING and "action" not in parse_qs(query):
        service.action = "map"  # to the type of the notification
    is_own = notification.others or getattr(service, "action", None) in _OPENING
    keys = dict.fromkeys(_INCIDENT_KEYS, notification.id if is_own else notification.change.alarm_id)
    # Splunk's default is one incident for all alarms. An alert of Opsgenie is one notification.
    defaults = (None, f"{service.app_id}/{getattr(service, 'routing_key', '')}")
    for name, key in {**keys, "alias": notification.id}.items():
        if hasattr(service, name) and getattr(service, name) in defaults:
            setattr(service, name, key)


class ConnectionGuard:
    """Checks the connections of one attempt. ``refused``: the first forbidden address. ``connections``: the number of
    permitted connections."""

    def __init__(self, rules: AddressRules, deadline: SendDeadline) -> None:
        self._rules = rules
        self._deadline = deadline
        self.refused: str | None = None
        self.connections = 0

    def check(self, connection: socket.socket, address: Any) -> None:
        """Raise `PermissionError`, which ends the call that connects, if the address is forbidden."""
        host = address[0] if isinstance(address, tuple) and address else None
        if not isinstance(host, str) or not self._permits(host):
            self.refused = self.refused or str(host or "a socket of this machine")
            raise PermissionError(f"connections to {self.refused} are forbidden")
        self.connections += 1
        self._deadline.watch(connection)

    def _permits(self, host: str) -> bool:
        try:
            return self._rules.permits(ipaddress.ip_address(host))
        except ValueError:  # a name, which would be resolved without a check
            return False


@contextlib.contextmanager
def _guarded(rules: AddressRules, deadline: SendDeadline) -> Iterator[ConnectionGuard]:
    guard = ConnectionGuard(rules, deadline)
    token = _guard.set(guard)
    try:
        yield guard
    finally:
        _guard.reset(token)


@cache
def _watch_connections() -> None:
    """Install the hook once, because an audit hook of the interpreter cannot be removed."""
    sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _CONNECTING and (guard := _guard.get()) is not None:
        guard.check(arguments[0], arguments[1])
