# SPDX-License-Identifier: Apache-2.0
"""How far a job is, on standard error: a bar on a terminal where the end is known, else a line now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from monasca_common.pipeline.jobs.job import JobProgress

_LINE_EVERY_SECONDS = 10.0


class Shown:
    """``bounded``: whether what is left now is all there will be."""

    def __init__(self, job: str, *, bounded: bool) -> None:
        self._job = job
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=self._console) if bounded and self._console.is_terminal else None
        self._task = self._bar.add_task(job, total=None) if self._bar is not None else None
        self._said_at = -_LINE_EVERY_SECONDS

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def tell(self, progress: JobProgress) -> None:
        total = progress.done + progress.left
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, completed=progress.done)
        elif time.monotonic() - self._said_at >= _LINE_EVERY_SECONDS:
            self._said_at = time.monotonic()
            line = f"{self._job}: {progress.done:,} offsets done, {progress.left:,} left"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
