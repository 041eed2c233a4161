# SPDX-License-Identifier: Apache-2.0
"""The budget of messages in flight, in messages and bytes, and the callers that wait for room."""

from __future__ import annotations

import threading
from collections.abc import Sized

from monasca_common.kafka.producer.in_flight import Latch


class Budget:
    """The budget of a producer. Every reservation except that of one plain `send` holds ``lock``."""

    def __init__(self, outstanding: Sized, *, max_messages: int, max_bytes: int) -> None:
        """``outstanding``: the single messages in flight, each of which takes the room of one message."""
        self.lock = threading.RLock()  # a signal handler that closes may interrupt its owner
        self.max_messages = max_messages
        self.max_bytes = max_bytes  # below 0: shut
        self.room_messages = max_messages  # less plain bulks, and the undelivered that wait for a flush; under `lock`
        # Two counters, each with one kind of writer. `+=` of senders in several threads is not exact by any promise of
        # the language: the budget would be off by a message, no outcome would.
        self.entered_bytes = 0
        self.left_bytes = 0
        self.waiting: list[tuple[int, int, Latch]] = []
        self._outstanding = outstanding

    @property
    def used_bytes(self) -> int:
        return self.entered_bytes - self.left_bytes

    @property
    def is_shut(self) -> bool:
        return self.max_bytes < 0

    def fits(self, messages: int, size: int) -> bool:
        return len(self._outstanding) + messages <= self.room_messages and self.used_bytes + size <= self.max_bytes

    def ever_fits(self, messages: int, size: int) -> bool:
        return messages <= self.max_messages and size <= self.max_bytes

    # The caller of all of these holds the lock.

    def ask(self, messages: int, size: int) -> Latch:
        """A latch that opens when there is room for this much, or can never be any."""
        latch = Latch(1)
        self.waiting.append((messages, size, latch))
        if not self.ever_fits(messages, size):  # shut since the caller looked
            latch.count_down()
        return latch

    def stop_asking(self, latch: Latch) -> None:
        self.waiting = [waiter for waiter in self.waiting if waiter[2] is not latch]

    def offer(self) -> None:
        """Wake the callers that wait for room, once a quarter is free: one by one would cost a thread switch per
        message."""
        busy = bool(self._outstanding) or self.room_messages < self.max_messages
        if busy and not self.fits(self.max_messages // 4, self.max_bytes // 4):
            return
        still_waiting = []
        for waiter in self.waiting:
            messages, size, latch = waiter
            if self.fits(messages, size):
                latch.count_down()
            else:
                still_waiting.append(waiter)
        self.waiting = still_waiting

    def shut(self) -> None:
        """Admit no more messages, and wake the callers that wait for room."""
        self.max_bytes = -1
        for _, _, latch in self.waiting:
            latch.count_down()
        self.waiting = []
