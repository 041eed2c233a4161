# SPDX-License-Identifier: Apache-2.0
"""The signals that stop a process, and the time limits for stopping clients and consumers."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable
from types import FrameType

from monasca_common.kafka.settings import ConsumerSettings

#: The time-out for closing a client. Messages that must arrive have already been flushed, stored or written to a
#: journal.
CLOSE_SECONDS = 1.0
# Added to the time-out of the members, so that their clients can close and the parent can detect the end.
_LEAVE_SECONDS = 5


def grace_seconds(consumers: Iterable[ConsumerSettings]) -> int:
    """Return the time after which the stopping process of these consumers is killed."""
    return math.ceil(max(each.stop_timeout_seconds for each in consumers)) + _LEAVE_SECONDS


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Call ``stop`` on SIGTERM and Ctrl-C."""

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
