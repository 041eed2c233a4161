# SPDX-License-Identifier: Apache-2.0
"""The signals that stop a process, and the time limit for closing clients."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

#: The time-out for closing a client. Messages that must arrive have already been flushed, stored or written to a
#: journal.
CLOSE_SECONDS = 1.0


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Call ``stop`` on SIGTERM and Ctrl-C."""

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
