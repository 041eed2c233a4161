# SPDX-License-Identifier: Apache-2.0
"""The number of attempts of a handler, and the waits between them."""

from __future__ import annotations

from dataclasses import dataclass

from monasca_common.kafka.errors import ConfigurationError

# After this number of doublings, every delay is at its bound; without this limit, an endless RetryLater would overflow
# a float.
_MAX_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter. Pure: the number of the attempt and the random value are arguments.

    ``attempts``: calls of the handler before a failure is final (1: no retry). `RetryLater` does not count.
    The delay is ``backoff_seconds`` before the second attempt, and is multiplied by ``multiplier`` for each further
    attempt, up to ``max_backoff_seconds``.
    ``jitter``: the random share of each delay, so that many processes do not retry at the same time.
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
        """Return whether a failure of attempt number ``attempts`` (from 1) is final."""
        return attempts >= self.attempts

    def delay(self, attempts: int, chance: float) -> float:
        """Return the seconds to wait after attempt number ``attempts`` (from 1); ``chance`` is uniform in [0, 1)."""
        exponent = min(max(attempts, 1) - 1, _MAX_EXPONENT)
        full = min(self.max_backoff_seconds, self.backoff_seconds * self.multiplier**exponent)
        return float(full * (1 - self.jitter * chance))
