# SPDX-License-Identifier: Apache-2.0
"""Reserves room for the next plain sends to a topic, so that a send does not take the producer's lock."""

from __future__ import annotations

from threading import RLock


class Reservation:
    """Sequences and bytes for messages of plain bytes; the native client has an equivalent in C.

    The sequences from ``next`` to ``end`` and ``left`` bytes are unused. A message uses the bytes of its value and key
    plus ``overhead``, at most ``largest`` in total. Ids begin with ``id_prefix``, or are off if it is ``None``.
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
        """End the reservation: no more messages use it."""
        with self.lock:
            self.end = self.next
