# SPDX-License-Identifier: Apache-2.0
"""Login sessions and failed logins, in memory: a restart ends all sessions."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

_MAX_SESSIONS = 1000
_MAX_KEYS = 10_000
_WITHIN_SECONDS = 300.0
_MOST_OF_A_USER = 10
_MOST_OF_AN_ADDRESS = 100


@dataclass(frozen=True, slots=True)
class Account:
    """A user who has logged in. ``valid_seconds``: the remaining lifetime of the user's token, if the login uses
    tokens."""

    user: str
    valid_seconds: float | None = None


class Sessions:
    """Sessions by cookie value; at the maximum number, the oldest session ends. ``now``: monotonic seconds."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()  # the user, and the end

    def open(self, account: Account) -> str:
        """Open a session, and return the value of its cookie."""
        cookie = secrets.token_urlsafe(32)
        lasts = self._seconds if account.valid_seconds is None else min(self._seconds, account.valid_seconds)
        with self._lock:
            self._sessions[cookie] = account.user, self._now() + lasts
            while len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return cookie

    def find(self, cookie: str) -> str | None:
        """Return the user, or ``None`` if there is no such session."""
        with self._lock:
            user, ends_at = self._sessions.get(cookie, (None, 0.0))
            return user if ends_at > self._now() else None

    def close(self, cookie: str) -> None:
        with self._lock:
            self._sessions.pop(cookie, None)


class LoginAttempts:
    """Failed logins within five minutes: at most 10 per user and address, and 100 per address.

    There is no limit per user across all addresses, because wrong passwords from one address would then lock the user
    out everywhere.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._failed: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()

    def reserve(self, user: str, address: str) -> float:
        """Count an attempt as failed before its password is checked, so that concurrent attempts are limited.

        Return 0, or the seconds to wait if the attempt exceeds the limit; an attempt over the limit is not counted.
        """
        now = self._now()
        with self._lock:
            wait = max(
                self._wait((user, address), _MOST_OF_A_USER, now), self._wait((address,), _MOST_OF_AN_ADDRESS, now)
            )
            if wait:
                return wait
            for key in ((user, address), (address,)):
                self._failed.setdefault(key, deque()).append(now)
                self._failed.move_to_end(key)
            while len(self._failed) > _MAX_KEYS:
                self._failed.popitem(last=False)
        return 0.0

    def succeeded(self, user: str, address: str) -> None:
        """Remove all failures of the user at this address, but only this attempt from the address's count."""
        with self._lock:
            self._failed.pop((user, address), None)
            if times := self._failed.get((address,)):
                times.pop()

    def _wait(self, key: tuple[str, ...], most: int, now: float) -> float:
        times = self._failed.get(key)
        while times and times[0] <= now - _WITHIN_SECONDS:
            times.popleft()
        return times[0] + _WITHIN_SECONDS - now if times and len(times) >= most else 0.0
