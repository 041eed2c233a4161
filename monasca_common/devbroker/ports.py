# SPDX-License-Identifier: Apache-2.0
"""Ports on the loopback address."""

import itertools
import random
import socket
import time

from monasca_common.devbroker.errors import PortTaken

HOST = "127.0.0.1"

# Below the range that systems hand out for outgoing connections, so that a port stays free while its broker is down.
_FIRST, _LAST = 20_000, 32_000
_ATTEMPTS = 200


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nobody listens on now; somebody may before they are used."""
    candidates = random.SystemRandom().sample(range(_FIRST, _LAST), _ATTEMPTS)
    found = list(itertools.islice(filter(is_free, candidates), count))
    if len(found) < count:
        raise PortTaken(
            f"no {count} free ports on {HOST} between {_FIRST} and {_LAST}: end something that listens there"
        )
    return found


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as brokers do: not stopped by TIME_WAIT
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def accepts(port: int) -> bool:
    """Whether somebody accepts connections on ``port``."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def wait_until_accepts(port: int, timeout: float) -> bool:
    """Whether ``port`` accepted a connection within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not accepts(port):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True
