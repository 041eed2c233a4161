# SPDX-License-Identifier: Apache-2.0
"""Where a service listens: one that cannot says so when it starts, with the options that name the place."""

from __future__ import annotations

import socket

from monasca_common.kafka.errors import ConfigurationError


def listen(group: str, host: str, port: int, *, prefix: str = "") -> socket.socket:
    """A socket that listens where the options ``host`` and ``port`` of ``group`` say; ``prefix``: of their names.

    Raises `ConfigurationError`: the port is taken or reserved, or the address is none of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]  # Python adds the address
        raise ConfigurationError(
            f"{prefix}port in group [{group}] is {port}, at which {host} cannot be listened to "
            f"({reason}): use another, or another {prefix}host"
        ) from None


def check_listener(group: str, host: str, port: int, *, prefix: str = "") -> None:
    """Raise what `listen` raises, for a server that opens its socket itself."""
    listen(group, host, port, prefix=prefix).close()
