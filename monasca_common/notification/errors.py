# SPDX-License-Identifier: Apache-2.0
"""The reasons why a notification was not sent.

::

    NotificationError
    ├── SendFailed            the receiver did not accept it: another attempt may succeed
    └── SendRefused           no attempt can succeed until the method is changed
        └── AddressRefused    notifications must not be sent to this address

Tenants can read the texts. An error text contains the host of a receiver but not the rest of its address, which may
contain a secret. Facts for operators, such as the private address of a host, are in ``detail``.
"""

from __future__ import annotations

_MOST_REASON = 500  # characters


def storable(reason: str) -> str:
    """Return the reason in the recorded form: texts from receivers and notifiers may contain characters that a database
    or JSON does not accept."""
    return reason[:_MOST_REASON].encode("utf-8", "replace").decode().replace("\0", "?")


class NotificationError(Exception):
    """The base class of all errors that a notifier raises."""

    def __init__(self, reason: str, *, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail

    @property
    def for_operators(self) -> str:
        """The text for logs, limited to the characters of `storable`."""
        return storable(f"{self} ({self.detail})" if self.detail else str(self))


class SendFailed(NotificationError):
    """The receiver did not accept the notification. ``after_seconds``: the minimum delay of the next attempt, if the
    receiver demands one. ``status``: the status of an HTTP response.
    """

    def __init__(
        self, reason: str, after_seconds: float | None = None, status: int | None = None, *, detail: str = ""
    ) -> None:
        super().__init__(reason, detail=detail)
        self.after_seconds = after_seconds
        self.status = status


class SendRefused(NotificationError):
    """The message or the method breaks a rule."""


class AddressRefused(SendRefused):
    """The address is malformed, or notifications must not be sent to it."""
