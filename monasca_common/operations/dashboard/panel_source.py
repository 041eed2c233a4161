# SPDX-License-Identifier: Apache-2.0
"""Sources of figures, read in the background so that no request waits for Kafka.

Each source has its own thread. A source that hangs affects only its own panel, which shows the time of the failure.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from monasca_common.kafka import MessagingError

LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """The last figures of a source, and the error of its last attempt. Times are in milliseconds since 1970.

    ``figures``: ``None`` before the first success. ``error``: empty if the last attempt succeeded.
    """

    figures: T | None = None
    gathered_ms: int | None = None
    error: str = ""
    failing_since_ms: int | None = None


class PanelSource(Generic[T]):
    """Calls ``gather`` with the time in milliseconds at each interval until `stop`. ``now``: monotonic seconds.

    ``timeout_seconds``: a longer call counts as failed. Calls are not interrupted, so ``gather`` needs its own
    time-outs.
    """

    def __init__(
        self,
        name: str,
        gather: Callable[[int], T],
        *,
        interval_seconds: float,
        timeout_seconds: float,
        now_ms: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._gather = gather
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._now_ms = now_ms
        self._now = now
        self._snapshot: Snapshot[T] = Snapshot()
        self._began: float | None = None
        self._due = now()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"dashboard-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop without waiting for a call in progress."""
        self._stopping.set()

    def snapshot(self) -> Snapshot[T]:
        """Return the last snapshot, with an error if the current call has exceeded the time-out."""
        known, began, now = self._snapshot, self._began, self._now()
        if began is None or now - began <= self._timeout_seconds:
            return known
        error, began_ms = f"no response for {now - began:.0f} s", self._now_ms() - round((now - began) * 1000)
        return Snapshot(known.figures, known.gathered_ms, error, known.failing_since_ms or began_ms)

    @property
    def seconds_overdue(self) -> float:
        """The seconds since the current call started, or since the next call was due."""
        began = self._began  # another thread may end the call
        return max(0.0, self._now() - (self._due if began is None else began))

    def refresh(self) -> None:
        """Gather the figures once."""
        now_ms, self._began = self._now_ms(), self._now()
        before = self._snapshot
        try:
            self._snapshot = Snapshot(self._gather(now_ms), now_ms)
        except Exception as error:
            if not before.error:
                LOG.warning("panel %s has no current figures: %s", self.name, error, exc_info=_is_defect(error))
            text = str(error) if isinstance(error, MessagingError) else f"{type(error).__name__}: {error}"
            self._snapshot = Snapshot(before.figures, before.gathered_ms, text, before.failing_since_ms or now_ms)
        finally:
            self._due = self._now() + self._interval_seconds
            self._began = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.refresh()
            self._stopping.wait(self._interval_seconds)


def _is_defect(error: Exception) -> bool:
    return not isinstance(error, MessagingError)
