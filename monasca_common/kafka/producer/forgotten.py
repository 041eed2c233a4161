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
_LOOK_EVERY_SECONDS = 0.01


class Closeable(Protocol):
    """The interface of what is closed at exit; `KafkaProducer` has it."""

    def is_ours_to_close(self) -> bool:
        """Whether it is open, and belongs to this process."""
        ...

    def is_busy(self) -> bool:
        """Whether a message is in flight."""
        ...

    def close_at_exit(self) -> Mapping[str, int]:
        """Close it; how many messages of each topic are not delivered."""
        ...


_open: weakref.WeakSet[Closeable] = weakref.WeakSet()


def remember(producer: Closeable) -> None:
    """Close it at the interpreter's exit, unless it is closed already."""
    _open.add(producer)


def close_all() -> None:
    forgotten = [producer for producer in list(_open) if producer.is_ours_to_close()]
    deadline = time.monotonic() + _LAST_SECONDS
    while any(producer.is_busy() for producer in forgotten) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)  # its own thread serves it
    for producer in forgotten:
        try:
            undelivered = producer.close_at_exit()
        except Exception:
            LOG.exception("a producer that was not closed could not be closed at exit")
            continue
        told = ", ".join(f"{topic}: {count}" for topic, count in sorted(undelivered.items())) or "none"
        if undelivered:
            LOG.error("a producer was not closed before the exit; messages that are not delivered, by topic: %s", told)
        warnings.warn(
            f"a KafkaProducer was not closed before the exit; undelivered messages by topic: {told}",
            ResourceWarning,
            stacklevel=1,
        )


atexit.register(close_all)
