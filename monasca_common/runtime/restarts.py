# SPDX-License-Identifier: Apache-2.0
"""Loops of services, which restart after a failure, with a back-off, until they are stopped."""

from __future__ import annotations

import gc
import logging
import threading
from abc import ABC, abstractmethod

from monasca_common.kafka import Clock, DeadLetterLimit, MessagingError, RetryPolicy
from monasca_common.kafka.clock import SystemClock

LOG = logging.getLogger(__name__)

# The back-off starts over after HEALTHY_SECONDS without a failure.
RESTARTS = RetryPolicy(backoff_seconds=0.5, max_backoff_seconds=30.0)
HEALTHY_SECONDS = 60.0


class Loop(ABC):
    """Serves until `stop`; restarts with a back-off after a failure. Create it after the fork.

    One thread calls `run`; any thread may call `stop`. ``subject``: the name of the loop in the log. ``expected``:
    errors whose text shows the cause, and which are logged without a traceback. ``longest_seconds``: the maximum wait
    after a failure.
    """

    expected: tuple[type[Exception], ...] = (MessagingError,)
    longest_seconds: float = RESTARTS.max_backoff_seconds

    def __init__(self, subject: str, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.stopping = threading.Event()
        self.finished = False
        self.restarts = 0
        self._subject = subject

    @abstractmethod
    def serve(self) -> None:
        """Open resources, work until `stopping` is set or an error is raised, and close them."""

    def explained(self, error: Exception) -> str:
        """Return the text of ``error`` for the log. Raise ``error``, or an error that explains it, if ``error`` must
        end the loop."""
        return str(error)

    def failed(self, error: Exception) -> None:  # noqa: B027 - most loops have nothing to add
        """Called after ``error`` has ended `serve`, which is called again after the back-off."""

    def run(self) -> None:
        """Serve until `stop`, or until `serve` sets `finished`. Raises the errors of `explained`.

        After `DeadLetterLimit` the loop does not restart, because more dead letters would follow.
        """
        failures = 0
        while not (self.finished or self.stopping.is_set()):
            started_at = self.clock.monotonic()
            try:
                self.serve()
                continue
            except Exception as error:
                text = self.explained(error)
                failures = 1 if self.clock.monotonic() - started_at > HEALTHY_SECONDS else failures + 1
                limited = isinstance(error, DeadLetterLimit)
                delay = None if limited else min(self.longest_seconds, RESTARTS.delay(failures, 0.0))
                then = "stays stopped until a restart" if delay is None else f"tries again in {delay:.1f} s"
                unexpected = not isinstance(error, self.expected)
                LOG.error("%s failed and %s: %s", self._subject, then, text, exc_info=unexpected)
                self.failed(error)
            # The traceback of the error refers to its client, and the client's threads run until it is collected.
            gc.collect()
            if not self.stopping.wait(delay):
                self.restarts += 1

    def stop(self) -> None:
        """Request the stop and return immediately; `run` ends after its current step."""
        self.stopping.set()
