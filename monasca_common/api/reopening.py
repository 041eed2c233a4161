# SPDX-License-Identifier: Apache-2.0
"""A worker's producer goes on after a fatal error: reopened when somebody posts or asks for its health, with back-off.

Without it a worker would answer 503 until somebody restarts it, although the permission that was missing is there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from monasca_common.kafka import ClosedError, KafkaProducer, MessagingError, RetryPolicy
from monasca_common.runtime.restarts import failures_in_a_row

LOG = logging.getLogger(__name__)

_PAUSES = RetryPolicy(backoff_seconds=1.0, max_backoff_seconds=60.0, jitter=0.0)


class Reopening:
    """Thread-safe: one thread reopens, the others go on."""

    def __init__(self, producer: KafkaProducer, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._producer = producer
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._attempts = 0  # in a row
        self._next = float("-inf")

    def reopen_if_finished(self) -> None:
        """Reopen the producer if a fatal error finished it, and the last attempt is long enough ago."""
        if not self._producer.health().finished or not self._lock.acquire(blocking=False):
            return
        try:
            now = self._monotonic()
            if now >= self._next and self._producer.health().finished:
                self._attempts = failures_in_a_row(self._attempts, now - self._next)
                self._next = now + _PAUSES.delay(self._attempts, 0.0)
                self._producer.reopen()
        except ClosedError:
            pass  # the worker ends
        except MessagingError as error:
            LOG.warning("the producer could not be reopened: %s", error)
        finally:
            self._lock.release()
