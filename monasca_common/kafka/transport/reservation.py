# SPDX-License-Identifier: Apache-2.0
"""What a producer reserves for its next plain sends to a topic, so that each of them takes no lock of the producer."""

from __future__ import annotations

from threading import RLock


class Reservation:
    """Sequences and bytes for messages that are nothing but bytes; the native client has one in C.

    The sequences from ``next`` to ``end`` and ``left`` bytes are not used yet. A message takes the bytes of its value
    and key and ``overhead`` bytes more, at most ``largest`` in all. Ids begin with ``id_prefix``; ``None``: no ids.
    """

    __slots__ = ("end", "id_prefix", "largest", "left", "lock", "next", "overhead")

    def __init__(
        self, first: int, end: int, left: int, largest: int, overhead: int, id_prefix: bytes | None, /
    ) -> None:
        self.next = first
        self.end = end
        self.left = left
        self.largest = largest
        self.overhead = overhead
        self.id_prefix = id_prefix
        self.lock = RLock()  # a signal handler may send

    def close(self) -> None:
        """From now on no message takes anything of it."""
        with self.lock:
            self.end = self.next
