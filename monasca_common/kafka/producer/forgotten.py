# SPDX-License-Identifier: Apache-2.0
"""Closes producers that are still open when the interpreter exits, as the last chance of their messages in flight.

It does not replace `close`: undelivered messages are only logged, and no program can act on a log line.
"""

from __future__ import annotations

import atexit
import logging
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Protocol

LOG = logging.getLogger(__name__)

_LAST_SECONDS = 2.0  # for all producers together


class Closeable(Protocol):
    """The interface of what is closed at exit; `KafkaProducer` has it."""

    def close_at_exit(self, timeout: float) -> Mapping[str, int] | None:
        """Close it; how many messages of each topic are not delivered. `None`: it is closed already, or belongs to
        another process."""
        ...


_open: weakref.WeakSet[Closeable] = weakref.WeakSet()
#: Have a producer closed at the interpreter's exit, unless it is closed already.
remember = _open.add


def close_all() -> None:
    deadline = time.monotonic() + _LAST_SECONDS
    for producer in list(_open):
        try:
            undelivered = producer.close_at_exit(max(0.0, deadline - time.monotonic()))
        except Exception:
            LOG.exception("a producer that was not closed could not be closed at exit")
            continue
        if undelivered is None:
            continue
        by_topic = ", ".join(f"{topic}: {count}" for topic, count in sorted(undelivered.items())) or "none"
        if undelivered:
            LOG.error("a producer was not closed before the exit; undelivered messages by topic: %s", by_topic)
        warnings.warn(
            f"a KafkaProducer was not closed before the exit; undelivered messages by topic: {by_topic}",
            ResourceWarning,
            stacklevel=1,
        )


atexit.register(close_all)
