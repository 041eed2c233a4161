# SPDX-License-Identifier: Apache-2.0
"""Kafka clients do not survive a fork, because their threads exist only in the parent.

A child must neither use an inherited client nor destroy it, because destroying a subscribed consumer aborts the child
when it exits. A `ForkGuard` refuses calls in the child, and keeps pinned clients alive for the child's whole life.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from monasca_common.kafka.errors import ConfigurationError, ForkedError

_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()


class ForkGuard:
    """Ties its owner to the process that opened it.

    ``owner``: its name in errors, for example ``"KafkaConsumer"``. Raises `ConfigurationError` in a process patched
    by gevent or eventlet, because the client library's threads would block the whole event loop. ``in_child`` is called
    in every child, for an owner whose hot path does not check the guard.
    """

    def __init__(self, owner: str, *, in_child: Callable[[], None] | None = None) -> None:
        patched_by = _green_patch()
        if patched_by is not None:
            raise ConfigurationError(
                f"{owner} cannot run in a process patched by {patched_by}: it waits in native threads, which "
                f"would stop every green thread; do not patch, or use it in a separate process"
            )
        self._owner = owner
        self._in_child = in_child
        self._pid = os.getpid()
        self._handles: list[Any] = []
        _guards.add(self)

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the process that opened the owner."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise `ForkedError` in a child of the process that opened the owner."""
        if os.getpid() != self._pid:
            raise ForkedError(
                f"this {self._owner} was opened by process {self._pid} and cannot be used in its child "
                f"{os.getpid()}: open one after the fork"
            )

    def pin(self, handle: Any) -> None:
        """Keep ``handle``, a native client, alive in every child (and, while this guard exists, in this process)."""
        self._handles.append(handle)

    def unpin(self, closed: Sequence[Any] | None = None) -> None:
        """Release pinned handles (all if ``None``) once they are closed, because a child can destroy a closed client
        safely."""
        gone = self._handles if closed is None else closed
        self._handles = [handle for handle in self._handles if not any(handle is each for each in gone)]

    def _enter_child(self) -> None:
        if self._in_child is not None:
            self._in_child()
        for handle in self._handles:
            # A Python reference would be dropped when the interpreter exits, which would destroy the client.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def _enter_child() -> None:
    for guard in list(_guards):
        guard._enter_child()


os.register_at_fork(after_in_child=_enter_child)


def _green_patch() -> str | None:
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, ("socket", "thread", "threading"))):
        return "gevent"
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and any(map(eventlet.is_monkey_patched, ("socket", "thread"))):
        return "eventlet"
    return None
