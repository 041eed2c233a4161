# SPDX-License-Identifier: Apache-2.0
"""The time of a look at the topic, which does not follow the steps of a machine's clock."""

from __future__ import annotations

import logging
from collections.abc import Collection

from monasca_common.kafka.clock import Clock

LOG = logging.getLogger(__name__)

LONGEST_STEP_MS = 60_000
"""A larger difference between the wall clock and the monotonic clock is a step."""
ACCEPTED_AFTER_SECONDS = 600.0


class SteadyTime:
    """Continue at the pace of the monotonic clock after a step, until a record comes to Kafka at about the time of the
    wall clock, or no record comes for `ACCEPTED_AFTER_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time_ms: int | None = None
        self._wall_ms = 0
        self._at = 0.0
        self._stepped_at: float | None = None

    def time_ms(self, wall_ms: int) -> int:
        now, self._wall_ms = self._clock.monotonic(), wall_ms
        steady_ms = wall_ms if self._time_ms is None else self._time_ms + round((now - self._at) * 1000)
        if abs(wall_ms - steady_ms) <= LONGEST_STEP_MS:
            self._stepped_at = None
        elif self._stepped_at is None:
            LOG.warning("the clock stepped by %d s; evaluation does not follow it", (wall_ms - steady_ms) // 1000)
            self._stepped_at = now
        elif now - self._stepped_at > ACCEPTED_AFTER_SECONDS:
            self._stepped_at = None
        self._time_ms, self._at = wall_ms if self._stepped_at is None else steady_ms, now
        return self._time_ms

    def compare(self, kafka_ms: Collection[int]) -> None:
        """``kafka_ms``: the times at which the last records came to Kafka."""
        if self._stepped_at is None or not kafka_ms:
            return
        self._stepped_at = self._clock.monotonic()
        if any(abs(time_ms - self._wall_ms) <= LONGEST_STEP_MS for time_ms in kafka_ms):
            self._time_ms, self._at = self._wall_ms, self._stepped_at
