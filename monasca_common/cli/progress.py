# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of long operations on standard error: a bar if the total is known and standard error is a
terminal. A job prints a line at most every ten seconds instead."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

_LINE_EVERY_SECONDS = 10.0


class Shown:
    """Shows progress in ``unit``. ``bounded``: whether the total is known. ``lines``: print lines without a bar."""

    def __init__(self, work: str, *, bounded: bool = True, lines: bool = False, unit: str = "offsets") -> None:
        self._work = work
        self._unit = unit
        self._lines = lines
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=self._console) if bounded and self._console.is_terminal else None
        self._task = self._bar.add_task(work, total=None) if self._bar is not None else None
        self._printed_at = -_LINE_EVERY_SECONDS
        self._printed = (0, 0)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def update(self, done: int, left: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=done + left, completed=done)
            return
        is_due = time.monotonic() - self._printed_at >= _LINE_EVERY_SECONDS
        if self._lines and is_due and (done, left) != self._printed:
            self._printed_at, self._printed = time.monotonic(), (done, left)
            line = f"{self._work}: {done:,} {self._unit} done, {left:,} left"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
