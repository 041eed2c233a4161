# SPDX-License-Identifier: Apache-2.0
"""Users' ``on_delivery`` callbacks: queued when a message is settled, and called later by the poller's thread only.

So a listener never runs inside a `send`, under locks that its caller holds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from monasca_common.kafka.producer.in_flight import Pending
from monasca_common.kafka.producer.outcome import DeliveryListener

LOG = logging.getLogger(__name__)


class Listener:
    """A watcher of a message: one call of the function that a user gave to `send`."""

    __slots__ = ("heard",)

    def __init__(self, heard: DeliveryListener) -> None:
        self.heard = heard


class Listeners:
    def __init__(self) -> None:
        self.due: deque[tuple[Listener, Pending]] = deque()  # in the order in which the messages were settled
        self.failures = 0
        self.wake: Callable[[], None] = lambda: None  # the poller's thread

    def call_those_due(self) -> None:
        while self.due:
            listener, pending = self.due.popleft()
            try:
                listener.heard(pending.snapshot(0)[1])
            except BaseException:  # for example, SystemExit would end the thread that all listeners need
                self.failures += 1
                LOG.exception("a delivery callback for topic %s failed", pending.topic)
