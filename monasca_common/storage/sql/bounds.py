# SPDX-License-Identifier: Apache-2.0
"""The time-outs of a session, in a module that does not import the client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a session may run a statement, wait for another session's lock, and be idle in a transaction. SQLite has
    the second alone."""

    statement_seconds: float
    lock_seconds: float
    idle_seconds: float

    def settings(self) -> dict[str, str]:
        return {
            "statement_timeout": milliseconds(self.statement_seconds),
            # Different from the time-out of a statement, so that a wait for a lock has its own error.
            "lock_timeout": milliseconds(self.lock_seconds),
            # The locks of a process that is frozen in a transaction do not keep its successor out indefinitely.
            "idle_in_transaction_session_timeout": milliseconds(self.idle_seconds),
        }


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
