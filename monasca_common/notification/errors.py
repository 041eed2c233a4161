# SPDX-License-Identifier: Apache-2.0
"""Why a notification was not sent.

::

    NotificationError
    ├── SendFailed            the receiver did not take it: another attempt may succeed
    ├── SendPostponed         nothing was sent, because this service is too busy: the attempt does not count
    └── SendRefused           no attempt can succeed while the method is as it is
        └── AddressRefused    nothing may be sent to this address

Their texts name a receiver's host and never the rest of its address, which may hold a secret. Tenants read them:
what only operators may know, as the private address that a host leads to, is in ``detail``.
"""

from __future__ import annotations

_MOST_REASON = 500  # characters


def storable(reason: str) -> str:
    """Return the reason as it is recorded and published: texts of receivers and of other packages' notifiers may hold
    characters that neither a database nor JSON accepts."""
    return reason[:_MOST_REASON].encode("utf-8", "replace").decode().replace("\0", "?")


class NotificationError(Exception):
    """Base of what a notifier raises."""

    def __init__(self, reason: str, *, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail

    @property
    def for_operators(self) -> str:
        """The text for a log, whose file accepts the same characters as a database."""
        return storable(f"{self} ({self.detail})" if self.detail else str(self))


class SendFailed(NotificationError):
    """``after_seconds``: when the receiver wants the next attempt at the earliest, if it says so. ``status``: of its
    answer over HTTP, if there was one."""

    def __init__(
        self, reason: str, after_seconds: float | None = None, status: int | None = None, *, detail: str = ""
    ) -> None:
        super().__init__(reason, detail=detail)
        self.after_seconds = after_seconds
        self.status = status


class SendPostponed(NotificationError):
    """The receiver is not at fault: nothing was asked of it. ``after_seconds``: when to try again."""

    def __init__(self, reason: str, after_seconds: float) -> None:
        super().__init__(reason)
        self.after_seconds = after_seconds


class SendRefused(NotificationError):
    """The message or the method breaks a rule."""


class AddressRefused(SendRefused):
    """The address is malformed, or leads where notifications may not go."""
