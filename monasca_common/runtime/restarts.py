# SPDX-License-Identifier: Apache-2.0
"""How a member of a consumer group starts again after a failure: with a back-off, for as long as it is not stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from monasca_common.kafka import Clock, DeadLetterLimit, RetryPolicy

LOG = logging.getLogger(__name__)

# The back-off begins anew after HEALTHY_SECONDS without a failure.
_RESTARTS = RetryPolicy(backoff_seconds=0.5, max_backoff_seconds=30.0, jitter=0.2)
HEALTHY_SECONDS = 60.0


def failures_in_a_row(before: int, lived_seconds: float) -> int:
    """With the failure that ended a life of so long; ``before`` it there were so many."""
    return 1 if lived_seconds > HEALTHY_SECONDS else before + 1


def restart_delay_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row, at least 1."""
    return _RESTARTS.delay(failures, 0.0)


def run_with_restarts(
    serve: Callable[[], None],
    name: str,
    stopping: threading.Event,
    clock: Clock,
    *,
    expected: tuple[type[Exception], ...],
    failed: Callable[[Exception], None] = lambda _: None,
    restarted: Callable[[], None] = lambda: None,
) -> None:
    """Call ``serve``, which has one consumer from its first poll to its close, until ``stopping``. Raises nothing.

    After `DeadLetterLimit` it stays failed until ``stopping``, because more of the same would follow. ``failed`` is
    called before the wait after a failure, and ``restarted`` after it. ``expected``: errors whose text shows their
    cause, so that a log of them needs no traceback.
    """
    failures = 0
    while not stopping.is_set():
        began = clock.monotonic()
        try:
            serve()
        except Exception as error:
            failures = failures_in_a_row(failures, clock.monotonic() - began)
            delay = None if isinstance(error, DeadLetterLimit) else restart_delay_seconds(failures)
            then = "stays so until a restart" if delay is None else f"tries again in {delay:.1f} s"
            unexpected = not isinstance(error, expected)
            LOG.error("the consumer of %s failed and %s: %s", name, then, error, exc_info=unexpected)
            failed(error)
            if not stopping.wait(delay):
                restarted()
