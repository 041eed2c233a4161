# SPDX-License-Identifier: Apache-2.0
"""Limits concurrent sends to a method and to a host, and the threads of a tenant. Slow receivers therefore occupy few
threads, and a tenant with many hosts and methods does not delay other tenants.

A notification without a free slot waits up to a second, unless its receiver hangs, and is then tried again later.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HANG_SECONDS = 1.0  # a failed attempt of this duration means that the receiver hangs
_WAIT_SECONDS = 1.0
_SHARE_OF_HANGING = 4


@dataclass(slots=True)
class Slot:
    """The right to send. Set ``hangs`` after an attempt: whether it failed after at least `HANG_SECONDS`."""

    hangs: bool | None = None


class Slots:
    """The slots of all receivers. Thread-safe.

    ``at_method``: the number of slots of a method. ``at_destination``: the number of slots of a host. After an attempt
    that hung, a receiver has a quarter of its slots until another attempt ends. ``threads``: the number of threads that
    tenants share.
    """

    def __init__(self, at_method: int, at_destination: int, threads: int) -> None:
        self._most = {"method": at_method, "host": at_destination, "waiting": at_method, "subject": 1}
        self._threads = threads
        # The operator -= also removes counts of 0.
        self._used: Counter[tuple[str, str]] = Counter()
        self._used_threads: Counter[str] = Counter()  # by tenant
        self._hanging: set[tuple[str, str]] = set()
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def slot(self, method_id: str, destination: str, subject: str, tenant: str) -> Iterator[Slot | None]:
        """Yield a slot, which is freed at the end of the block, or ``None`` if no slot is free.

        Notifications with the same ``subject`` are sent one at a time. ``destination``: the host, or ``""`` if the
        notifier opens no connection.
        """
        receiver = [("method", method_id), *([("host", destination)] if destination else [])]
        keys = [*receiver, ("subject", subject)]
        with self._freed:
            is_free = self._has_thread(tenant)
            if is_free:
                self._used_threads[tenant] += 1
                is_free = self._is_free(keys) or self._wait(receiver, keys)
                if is_free:
                    self._used.update(keys)
                else:
                    self._used_threads -= Counter([tenant])
        if not is_free:
            yield None
            return
        slot = Slot()
        try:
            yield slot
        finally:
            with self._freed:
                self._used -= Counter(keys)
                self._used_threads -= Counter([tenant])
                if slot.hangs:
                    self._hanging.update(receiver)
                elif slot.hangs is not None:
                    self._hanging.difference_update(receiver)
                self._freed.notify_all()

    def _has_thread(self, tenant: str) -> bool:
        """Return whether the tenant may use another thread; it may use half of those that other tenants do not use."""
        own = self._used_threads[tenant]
        return own < max(1, (self._threads - self._used_threads.total() + own) // 2)

    def _is_free(self, keys: Sequence[tuple[str, str]]) -> bool:
        return all(self._used[key] < self._limit(key) for key in keys)

    def _limit(self, key: tuple[str, str]) -> int:
        most = self._most[key[0]]
        return max(1, most // _SHARE_OF_HANGING) if key in self._hanging else most

    def _wait(self, receiver: Sequence[tuple[str, str]], keys: Sequence[tuple[str, str]]) -> bool:
        """Wait for a slot, unless the receiver hangs or many notifications are already waiting for its host."""
        waiting = [("waiting", receiver[-1][1])]
        if self._hanging.intersection(receiver) or not self._is_free(waiting):
            return False
        self._used.update(waiting)
        is_free = self._freed.wait_for(lambda: self._is_free(keys), _WAIT_SECONDS)
        self._used -= Counter(waiting)
        return is_free
