# SPDX-License-Identifier: Apache-2.0
"""How often a handler is tried again, and how long to wait in between."""

from __future__ import annotations

from dataclasses import dataclass

from monasca_common.kafka.errors import ConfigurationError

# Beyond this many doublings every delay is at its bound; it keeps an endless RetryLater from overflowing a float.
_MAX_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter. Pure: the attempt's number and the randomness come in as arguments.

    ``attempts``: calls of the handler before a failure is final (1: no retry). `RetryLater` does not count.
    ``backoff_seconds`` before the second attempt, then ``multiplier`` times more each, ``max_backoff_seconds`` at most.
    ``jitter``: the share of each delay that is left to chance, so that many processes do not come back at once.
    """

    attempts: int = 3
    backoff_seconds: float = 0.5
    multiplier: float = 2.0
    max_backoff_seconds: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        rules = (
            (self.attempts >= 1, "attempts", "at least 1"),
            (self.backoff_seconds >= 0, "backoff_seconds", "not negative"),
            (1 <= self.multiplier <= 10, "multiplier", "from 1 to 10"),
            (self.max_backoff_seconds >= self.backoff_seconds, "max_backoff_seconds", "not below backoff_seconds"),
            (0 <= self.jitter <= 1, "jitter", "from 0 to 1"),
        )
        for holds, name, rule in rules:
            if not holds:
                raise ConfigurationError(f"RetryPolicy({name}={getattr(self, name)!r}): {name} must be {rule}")

    def exhausted(self, attempts: int) -> bool:
        """Whether a failure of attempt number ``attempts`` (from 1) is final."""
        return attempts >= self.attempts

    def delay(self, attempts: int, chance: float) -> float:
        """Seconds to wait after attempt number ``attempts`` (from 1); ``chance`` is uniform in [0, 1)."""
        exponent = min(max(attempts, 1) - 1, _MAX_EXPONENT)
        full = min(self.max_backoff_seconds, self.backoff_seconds * self.multiplier**exponent)
        return float(full * (1 - self.jitter * chance))
