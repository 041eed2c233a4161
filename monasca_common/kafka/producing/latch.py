# SPDX-License-Identifier: Apache-2.0
"""What a caller waits on until its messages are settled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monasca_common.kafka.producing.pending import Pending


class Latch:
    """Opens when everything that it was hung on is settled; one thread may wait on ``lock``."""

    __slots__ = ("left", "lock", "spoiled")

    def __init__(self, left: int) -> None:
        self.left = left
        self.spoiled = False  # whether any was settled otherwise than by the plain acknowledgement
        self.lock = threading.Lock()
        if left:
            self.lock.acquire()

    def settled(self, pending: Pending) -> None:
        self.spoiled = True
        self.count_down()

    def count_down(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.wake()

    def wake(self) -> None:
        """Let its waiter have a look, whether it is open or not."""
        if self.lock.locked():
            try:
                self.lock.release()
            except RuntimeError:  # somebody else woke it at the same moment
                return

    @property
    def open(self) -> bool:
        return self.left <= 0
