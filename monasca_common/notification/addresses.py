# SPDX-License-Identifier: Apache-2.0
"""Addresses of HTTP notifications: the form of a URL, its resolution, and the rules for each address.

Tenants choose these URLs, and the service can reach servers that tenants cannot reach. Therefore a host is resolved
once, each of its addresses is checked, and the connection is opened to a checked address: a second resolution could
return another address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from monasca_common.notification.errors import AddressRefused, SendFailed
from monasca_common.runtime.send_deadline import SendDeadline

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
#: A function with the parameters and the result of `socket.getaddrinfo`.
Lookup: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]

_CONNECT_SECONDS = 3.0  # time limit of the connection to each address
_PORTS = {"http": 80, "https": 443}
_FORBIDDEN_SIGNS = re.compile(r"[\s\x00-\x20\x7f\\]")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")  # a name or an IPv4 address; an IPv6 address

# Global addresses that receivers must not have.
_NEVER = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # Azure's services for virtual machines
            # contains a cloud's metadata service; older Python versions classify most of this network as global
            "192.0.0.0/24",
            "192.88.99.0/24",  # relays of 6to4
            "2001::/32",  # Teredo, which embeds an IPv4 address
            "2002::/16",  # 6to4, which embeds an IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)
# No machine has these addresses: if a socket can be bound to them, it can be bound to any address (ip_nonlocal_bind).
_OTHERS = {4: ipaddress.ip_address("192.0.2.1"), 6: ipaddress.ip_address("2001:db8::1")}
_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL with a valid form. ``target``: path and query, as in the request line."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The part that may be logged, because paths and queries contain tokens."""
        return f"{self.scheme}://{self.authority}"


def endpoint(url: str) -> Endpoint:
    """Parse a URL. Raises `AddressRefused` if it is not HTTP, or if URL parsers could interpret it differently."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise AddressRefused("the address is not a URL: write http://host/path or https://host/path") from error
    for broken, remedy in (
        (_FORBIDDEN_SIGNS.search(url), "contains spaces, control characters or backslashes: percent-encode them"),
        (not url.isascii(), "contains characters outside ASCII: write a host as xn--…, and percent-encode a path"),
        (parts.scheme not in _PORTS, "is neither http:// nor https://"),
        ("@" in parts.netloc, "contains a user or a password: remove them"),
        (not _HOST.fullmatch(host), "has no host, or a host with forbidden characters: write http://host/path"),
        (port == 0, "has port 0: write a port from 1 to 65535"),
    ):
        if broken:
            raise AddressRefused(f"the address {remedy}")
    target = parts.path or "/"
    return Endpoint(
        parts.scheme, host, port or _PORTS[parts.scheme], f"{target}?{parts.query}" if parts.query else target
    )


@dataclass(frozen=True, slots=True)
class AddressRules:
    """Rules for addresses. ``allowed``: networks that are permitted although they are not public. ``denied``: networks
    that are never permitted."""

    allowed: tuple[IpNetwork, ...] = ()
    denied: tuple[IpNetwork, ...] = ()

    def permits(self, address: IpAddress) -> bool:
        """Return whether notifications may be sent there: public addresses of other machines, and allowed networks."""
        if any(address in network for network in self.denied):
            return False
        if any(address in network for network in self.allowed):
            return True
        if not address.is_global or address.is_multicast or address.is_reserved:
            return False
        if address.version == 6 and address not in _GLOBAL_IPV6:
            return False
        return not any(address in network for network in _NEVER) and not _is_own(address)


def _is_own(address: IpAddress) -> bool:
    """Return whether this machine has the address. If it does, a socket can be bound to the address."""
    return _can_bind(address) and not _can_bind(_OTHERS[address.version])


def _can_bind(address: IpAddress) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def resolve(host: str, port: int, rules: AddressRules | None, seconds: float, lookup: Lookup) -> list[IpAddress]:
    """Return the addresses of the host, without duplicates, in the order of ``lookup``. ``rules``: ``None`` for a host
    that the operator chose.

    Raises `AddressRefused` if ``rules`` forbid one of them, and `SendFailed` if none is found within ``seconds``.
    """
    found = _addresses(host, port, seconds, lookup)
    if not found:
        raise SendFailed(f"{host} has no address")
    for address in found:
        if rules is not None and not rules.permits(address):
            raise AddressRefused(
                f"notifications must not be sent to {host}: use a public address, or ask the operator to add its "
                "network to allowed_networks in the group [notification]",
                detail=f"the address is {address}",  # only for operators, because it reveals a private network
            )
    return found


def connect(addresses: Sequence[IpAddress], port: int, deadline: SendDeadline) -> socket.socket:
    """Connect to the first address that accepts a connection, which ``deadline`` watches. Raises `OSError`."""
    for number, address in enumerate(addresses, 1):
        try:
            connection = socket.create_connection((str(address), port), deadline.left(_CONNECT_SECONDS))
        except OSError:
            if number == len(addresses) or deadline.over:
                raise
        else:
            deadline.watch(connection)  # before a TLS handshake, which the deadline also limits
            return connection
    raise AssertionError("a resolved host has an address")


def _addresses(host: str, port: int, seconds: float, lookup: Lookup) -> list[IpAddress]:
    """Return the host if it is an address. Otherwise look it up in a thread, because a look-up has no time-out. The
    thread may outlive the call until the system's resolver gives up."""
    with contextlib.suppress(ValueError):
        return [ipaddress.ip_address(host)]
    outcome: list[Sequence[tuple[Any, ...]] | OSError | UnicodeError] = []

    def look_up() -> None:
        try:
            outcome.append(lookup(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            outcome.append(error)

    thread = threading.Thread(target=look_up, name="resolve", daemon=True)
    thread.start()
    thread.join(seconds)
    found = outcome[0] if outcome else TimeoutError(f"no response within {seconds:.1f} s")
    if isinstance(found, OSError | UnicodeError):
        raise SendFailed(f"{host} cannot be resolved: {found}")
    return list(dict.fromkeys(ipaddress.ip_address(entry[4][0]) for entry in found))
