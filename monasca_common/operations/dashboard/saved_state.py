# SPDX-License-Identifier: Apache-2.0
"""State that outlives a crash of the dashboard's worker: in memory that the server's first process holds."""

from __future__ import annotations

import os
import threading
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class SavedState(Generic[T]):
    """One value, which a later worker of the same server reads. Create it before the worker is forked.

    The value is never on disk, because it may contain tokens. A value that a crash cut short is read as ``default``.
    """

    def __init__(self, kind: type[T], default: T) -> None:
        self._kind = kind
        self._default = default
        self._file = os.memfd_create("monasca-dashboard", os.MFD_CLOEXEC)
        self._lock = threading.Lock()

    def save(self, value: T) -> None:
        content = msgspec.msgpack.encode(value)
        with self._lock:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, content, 0)

    def load(self) -> T:
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        try:
            return msgspec.msgpack.decode(content, type=self._kind)
        except msgspec.MsgspecError:
            return self._default
