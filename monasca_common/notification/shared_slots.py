# SPDX-License-Identifier: Apache-2.0
"""A bounded number of slots that tenants share, so that none can take all of them."""

from __future__ import annotations

import threading
from collections import Counter

_MOST_IN_ALL = 4


class SharedSlots:
    """Each tenant may hold half of the ``most`` slots that the others leave. Thread-safe.

    So some slots are free for a tenant that holds none, however many others hold all they may. If many do, a tenant may
    hold one beyond ``most``, but all tenants together never hold more than `_MOST_IN_ALL` times as many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self._freed = threading.Condition()

    def limit(self, tenant: str) -> int:
        """Return how many slots the tenant may hold now."""
        total = self._held.total()
        least = 1 if total < _MOST_IN_ALL * self._most else 0
        return max(least, (self._most - total + self._held[tenant]) // 2)

    def acquire(self, tenant: str, seconds: float) -> bool:
        """Wait for a slot at most ``seconds``. Return ``False`` if the tenant got none."""
        with self._freed:
            if not self._freed.wait_for(lambda: self._held[tenant] < self.limit(tenant), seconds):
                return False
            self._held[tenant] += 1
            return True

    def release(self, tenant: str) -> None:
        with self._freed:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
            self._freed.notify_all()
