# SPDX-License-Identifier: Apache-2.0
"""Into the book as soon as there is room, and out of the caller's hands."""

from __future__ import annotations

from collections.abc import Sequence

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.delivery import Outcome
from monasca_common.kafka.errors import DeliveryAbandoned, DeliveryError, QueueFull
from monasca_common.kafka.producing.ledger import Ledger
from monasca_common.kafka.producing.pending import Pending
from monasca_common.kafka.producing.pump import Pump
from monasca_common.kafka.producing.routes import Routes
from monasca_common.kafka.settings import ProducerSettings


class Admission:
    def __init__(self, settings: ProducerSettings, ledger: Ledger, pump: Pump, routes: Routes, clock: Clock) -> None:
        self._settings = settings
        self._ledger = ledger
        self._pump = pump
        self._routes = routes
        self._clock = clock

    def launch(self, pendings: Sequence[Pending], size: int, deadline: float) -> None:
        """Hand messages of any topics to their clients, or settle them as failed: no room until the deadline."""
        try:
            admitted = self.admit(pendings, size, deadline)
        except BaseException:  # Ctrl-C: on their way in the book, and never sent, they could not be sent again
            error = DeliveryAbandoned("interrupted while it waited for room; it was not sent")
            self._ledger.settle(pendings, Outcome.FAILED, error)
            raise
        if not admitted:
            self._ledger.settle(pendings, Outcome.FAILED, self.no_room(len(pendings), size))
            return
        by_topic: dict[str, list[Pending]] = {}
        for pending in pendings:
            by_topic.setdefault(pending.topic, []).append(pending)
        for topic, its_own in by_topic.items():
            self._routes.launch(topic, its_own)

    def admit(self, pendings: Sequence[Pending], size: int, deadline: float) -> bool:
        """Enter messages into the book, waiting for room until the deadline; whether there was any."""
        while not self._ledger.enter(pendings, size):
            if not self._ledger.ever_fits(len(pendings), size):
                return False
            room = self._ledger.ask_for_room(len(pendings), size)
            opened = self._pump.wait(room, deadline - self._clock.monotonic())
            self._ledger.stop_asking(room)
            if not opened:
                return self._ledger.enter(pendings, size)
        return True

    def no_room(self, messages: int, size: int) -> DeliveryError:
        """Why they were not admitted."""
        if self._ledger.is_shut:
            return DeliveryAbandoned("the producer was closed before there was room; it was not sent")
        return QueueFull(
            f"no room for {messages} messages of {size} bytes: the budget is {self._settings.budget_messages} messages "
            f"and {self._settings.budget_bytes} bytes; Kafka is slow or away, or flush was never called to collect "
            "undelivered sends"
        )
