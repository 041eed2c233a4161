# SPDX-License-Identifier: Apache-2.0
"""Ports on the loopback address."""

import fcntl
import functools
import itertools
import os
import random
import socket
from pathlib import Path

from monasca_common.devbroker.errors import PortTaken

HOST = "127.0.0.1"

# Below the range that systems use for outgoing connections, so that a port stays free while its broker is down.
_FIRST, _LAST = 20_000, 32_000
_ATTEMPTS = 200
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return ``count`` free ports that no running process of this user has reserved. Other programs may take the ports
    before they are used."""
    candidates = random.SystemRandom().sample(range(_FIRST, _LAST), _ATTEMPTS)
    found = list(itertools.islice((port for port in candidates if is_free(port) and _reserve(port)), count))
    if len(found) < count:
        raise PortTaken(f"no {count} free ports on {HOST} between {_FIRST} and {_LAST}: stop programs that use them")
    return found


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like brokers, ignore sockets in TIME_WAIT
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Reserve the port until this process ends. Return ``False`` if another process has reserved it."""
    if port in _given:
        return False
    register = _register()
    try:
        fcntl.lockf(register, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    _given.add(port)
    return True


@functools.cache
def _register() -> int:
    """Open the file in which processes lock one byte per reserved port. All processes share it, so its folder does not
    come from `tempfile`, whose folder tests change.
    """
    folder = os.environ.get("TMPDIR") or "/tmp"  # nosec B108
    path = Path(folder, f"monasca-common-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def accepts(port: int) -> bool:
    """Return whether a program accepts connections on ``port``."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0
