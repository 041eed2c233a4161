# SPDX-License-Identifier: Apache-2.0
"""Message ids: what makes a message the same message, however often it is sent."""

from __future__ import annotations

import itertools
import os
import struct


class MessageIds:
    """16 bytes each: 8 random ones of this instance, and a counter. Made when a producer opens, never at import:
    a child of a fork would repeat its parent's ids."""

    def __init__(self) -> None:
        self.prefix = os.urandom(8)
        self.numbers = itertools.count()  # `next` of it is atomic, so that threads can share it
        self.pack = struct.Struct(">8sQ").pack

    def next(self) -> bytes:
        return self.pack(self.prefix, next(self.numbers))

    def take(self, count: int) -> list[bytes]:
        return list(map(self.pack, itertools.repeat(self.prefix), itertools.islice(self.numbers, count)))
