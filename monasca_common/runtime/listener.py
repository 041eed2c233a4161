# SPDX-License-Identifier: Apache-2.0
"""Opens listening sockets; if a socket cannot be opened, the error names the options for its host and port."""

from __future__ import annotations

import socket

from monasca_common.kafka.errors import ConfigurationError


def listen(group: str, host: str, port: int, *, prefix: str = "") -> socket.socket:
    """Open a listening socket at the options ``host`` and ``port`` of ``group``. ``prefix``: the prefix of the options'
    names.

    Raises `ConfigurationError` if the port is taken or reserved, or the address does not belong to this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or too long
        # Python adds the address to the text
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while attempting")[0]
        raise ConfigurationError(
            f"the service cannot listen at {host}:{port} ({reason}): change {prefix}port or {prefix}host in group "
            f"[{group}]"
        ) from None


def check_listener(group: str, host: str, port: int, *, prefix: str = "") -> None:
    """Raise the error of `listen`, for a server that opens its socket itself."""
    listen(group, host, port, prefix=prefix).close()
