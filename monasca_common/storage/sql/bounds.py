# SPDX-License-Identifier: Apache-2.0
"""The time-outs of a session; this module imports no database client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """The maximum durations of a statement, of a wait for another session's lock, and of an idle transaction. SQLite
    supports only the second limit."""

    statement_seconds: float
    lock_seconds: float
    idle_seconds: float

    def settings(self) -> dict[str, str]:
        return {
            "statement_timeout": milliseconds(self.statement_seconds),
            # This is a separate time-out, so that a wait for a lock raises its own error.
            "lock_timeout": milliseconds(self.lock_seconds),
            # Without this limit, a process that freezes in a transaction would block its successor indefinitely.
            "idle_in_transaction_session_timeout": milliseconds(self.idle_seconds),
        }


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
