# SPDX-License-Identifier: Apache-2.0
"""The shutdown of a processor: the request, its deadline, its reason, and the report of uncommitted work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import MisuseError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConsumerSettings

LOG = logging.getLogger(__name__)

STILL_RUNNING = "the processor has not ended by its deadline: a rebalance listener or a hook has not returned"
_GRACE_SECONDS = 5.0  # longer than any call of the client takes after its limit

# A stop longer than max.poll.interval would end the membership and prevent the last commit.
_POLL_INTERVAL_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class StopReport:
    """The progress of a stopped processor. The next owner of a partition reads its uncommitted messages again.

    ``committed``: next offsets that the broker confirmed. ``unconfirmed``: next offsets up to which everything is done,
    without a confirmed commit. ``left``: the number of messages that were read but not handled; ``in_flight``: how many
    of them were in calls that had not returned at the deadline.
    """

    committed: Mapping[TopicPartition, int]
    unconfirmed: Mapping[TopicPartition, int]
    left: Mapping[TopicPartition, int]
    in_flight: Mapping[TopicPartition, int]

    @property
    def clean(self) -> bool:
        """Whether no message is in flight, and all finished messages are committed."""
        return not self.in_flight and not self.unconfirmed


class Shutdown:
    """The end of one run: any thread requests it, and the running thread executes it. The first failure becomes the
    reason."""

    def __init__(self, clock: Clock, settings: ConsumerSettings) -> None:
        self._clock = clock
        self._default_seconds = settings.stop_timeout_seconds
        self._max_seconds = settings.max_poll_interval_seconds * _POLL_INTERVAL_SHARE
        self.over = threading.Event()  # cleared during a run
        self.over.set()
        self._runner: threading.Thread | None = None
        self.requested = False
        self.until = 0.0  # monotonic
        self.failure: BaseException | None = None
        self.report: StopReport | None = None

    def begin(self) -> None:
        """Begin the run on the calling thread."""
        if self._runner is not None:
            raise MisuseError("a Processor can run only once: create another one with the same consumer")
        self._runner = threading.current_thread()
        self.over.clear()

    def request(self, seconds: float | None) -> None:
        """Request the end. The first request sets the deadline; a later one can only shorten it."""
        wanted = self._default_seconds if seconds is None else seconds
        until = self._clock.monotonic() + min(wanted, self._max_seconds)
        self.until = until if not self.requested else min(until, self.until)
        self.requested = True  # no lock, because a signal handler may interrupt a thread that holds it

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self.request(None)

    def conclude(self, wind_down: Callable[[], StopReport]) -> StopReport:
        """Shut down, wake the threads in `wait`, and return the report or raise the reason."""
        try:
            self.report = report = wind_down()
        except Exception:
            if self.failure is None:
                raise
            raise self.failure from self.failure.__cause__
        finally:
            self.over.set()
        if self.failure is not None:
            raise self.failure
        return report

    def wait(self) -> None:
        """Wait up to `patience` for the end of the run; do not wait before a run or on the running thread."""
        if threading.current_thread() is not self._runner and not self.over.wait(self.patience()):
            LOG.warning(STILL_RUNNING)

    def patience(self) -> float:
        """Return the maximum number of seconds that a stop waits, even if the polling thread hangs."""
        return max(0.0, self.until - self._clock.monotonic()) + _GRACE_SECONDS
