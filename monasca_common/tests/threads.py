# SPDX-License-Identifier: Apache-2.0
import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from monasca_common.tests.waiting import PATIENCE_SECONDS

T = TypeVar("T")


def run_together(call: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
    """Like `map`, with a thread for each call; all calls start at the same time. Raises the first error."""
    calls = list(zip(*arguments, strict=True))
    start = threading.Barrier(len(calls))
    results: list[Future[T]] = [Future() for _ in calls]

    def run(result: Future[T], of_call: tuple[Any, ...]) -> None:
        try:
            start.wait()
            result.set_result(call(*of_call))
        except BaseException as error:
            result.set_exception(error)

    for each in zip(results, calls, strict=True):
        threading.Thread(target=run, args=each, daemon=True).start()
    wait(results, PATIENCE_SECONDS)
    return [result.result(timeout=0) for result in results]


class LoopThread:
    """An event loop on a thread; other threads wait for its coroutines."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
