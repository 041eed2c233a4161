# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of a fetch on standard error: a bar on a terminal, a few lines elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINES_EVERY = 10


def say(text: str) -> None:
    """Print one plain line on standard error."""
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


class JarProgress:
    """Counts the jars of a fetch. Its ``title`` is shown immediately, because the first jar may take a while."""

    def __init__(self, title: str, *, total: int) -> None:
        self._title = title
        self._total = total
        self._count = 0
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task(self._title, total=self._total)
        else:
            say(f"{self._title}: {self._total} jars, which are kept for the next time")
        return self

    def jar(self, name: str) -> None:
        """Count one more jar."""
        self._count += 1
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._count)
        elif self._count % _LINES_EVERY == 0:
            say(f"  {self._count} of {self._total}: {name}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif error is None:
            say("  done")
