# SPDX-License-Identifier: Apache-2.0
"""The signals that stop a process, and the limits within which its loops and clients stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

#: The time-out for closing a client. Messages that must arrive have already been flushed, stored or written to a
#: journal.
CLOSE_SECONDS = 1.0
#: The time-out of one poll, after which a loop checks whether it must stop.
POLL_SECONDS = 0.2
#: The maximum number of messages of one poll in loops that read a whole log.
POLL_MESSAGES = 5000


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Call ``stop`` on SIGTERM and Ctrl-C."""

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
