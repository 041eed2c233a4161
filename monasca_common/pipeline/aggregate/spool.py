# SPDX-License-Identifier: Apache-2.0
"""Messages that wait to be published: in memory while they are few, else in a temporary file."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from monasca_common.pipeline.aggregate.output import OutputMessage

BULK = 1_000
IN_MEMORY_BYTES = 16 * 1024 * 1024


class Spool:
    """Written once, then read once. The file has no name, and goes when the block ends."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115
        self._waiting: list[tuple[bytes, bytes]] = []
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, message: OutputMessage) -> None:
        self._waiting.append((message.message_id, message.value))
        self.count += 1
        if len(self._waiting) == BULK:
            self._write()

    def bulks(self) -> Iterator[list[OutputMessage]]:
        """The messages in their order, at most `BULK` at a time."""
        last, self._waiting = self._waiting, []
        self._file.seek(0)
        for _ in range(self.count // BULK):
            yield [OutputMessage(*each) for each in pickle.load(self._file)]
        if last:
            yield [OutputMessage(*each) for each in last]

    def _write(self) -> None:
        pickle.dump(self._waiting, self._file, pickle.HIGHEST_PROTOCOL)
        self._waiting = []
