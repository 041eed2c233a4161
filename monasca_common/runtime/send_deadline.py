# SPDX-License-Identifier: Apache-2.0
"""The deadline of a request, which also ends the connection to a server that sends bytes very slowly."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time


class SendDeadline:
    """Shuts down each watched connection ``seconds`` after the block began, unless the block has ended.

    The time-out of a socket applies to each read, so it cannot limit a whole request.
    """

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._watched: list[socket.socket] = []

    def left(self, most: float) -> float:
        """Return the seconds until the end, at most ``most``; never 0, which has a different meaning for sockets."""
        return max(0.001, min(most, self._ends - time.monotonic()))

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._ends

    def watch(self, connection: socket.socket) -> None:
        """Watch a duplicate, because TLS takes over the connection's own descriptor, or already has it."""
        self._watched.append(socket.socket(fileno=os.dup(connection.fileno())))
        if self.over:  # the timer may have expired already
            self._cut()

    def __enter__(self) -> SendDeadline:
        self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()
        self._timer.join()
        for each in self._watched:
            each.close()

    def _cut(self) -> None:
        for each in self._watched:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
