# SPDX-License-Identifier: Apache-2.0
"""Why a notification was not sent.

::

    NotificationError
    ├── SendFailed            the receiver did not take it: another attempt may succeed
    └── SendRefused           no attempt can succeed while the method is as it is
        └── AddressRefused    nothing may be sent to this address

Their texts name a receiver's host and never the rest of its address, which may hold a secret.
"""

from __future__ import annotations


class NotificationError(Exception):
    """Base of what a notifier raises."""


class SendFailed(NotificationError):
    """``after_seconds``: when the receiver wants the next attempt at the earliest, if it says so. ``status``: of its
    answer over HTTP, if there was one."""

    def __init__(self, reason: str, after_seconds: float | None = None, status: int | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = after_seconds
        self.status = status


class SendRefused(NotificationError):
    """The message or the method breaks a rule."""


class AddressRefused(SendRefused):
    """The address is malformed, or leads where notifications may not go."""
