# SPDX-License-Identifier: Apache-2.0
"""`AsyncProcessor`: runs a `Processor` whose handler is an ``async def``.

It uses the `Processor`'s polling thread, ordered lanes, retries, dead letters and commits. A dispatcher thread takes
tasks from the lanes, at most ``concurrency`` at a time, and each runs as a task of the event loop. Work that may block
a thread (decoding, outputs, dead letters) runs on the ``threads`` of the processor.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from monasca_common.kafka.errors import ConfigurationError, HandlerError, MisuseError, RetryLater, WrongType
from monasca_common.kafka.message import PartitionBatch
from monasca_common.kafka.processor.attempt import NextTasks
from monasca_common.kafka.processor.handler_call import Call, Undecodable, decode
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.publishing import Abandoned
from monasca_common.kafka.processor.queues import Lane, Task
from monasca_common.kafka.processor.shutdown import STILL_RUNNING, StopReport

LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


class AsyncProcessor:
    """Runs ``processor``, whose handler is an ``async def``, in the event loop.

    ``concurrency``: the maximum number of concurrent calls, at most one per partition (per key with ``order="key"``).
    The processor's ``threads`` decode values and send outputs and dead letters. A handler that blocks the event loop
    delays the other calls, but the consumer stays in the group.
    """

    def __init__(self, processor: Processor, *, concurrency: int = 100) -> None:
        if concurrency < 1:
            raise ConfigurationError(f"AsyncProcessor: concurrency={concurrency}: use 1 or more")
        if not processor._attempts.caller.is_async:
            raise WrongType("AsyncProcessor: the handler is not an async def: call run() of the processor itself")
        self._processor = processor
        self._lanes, self._shutdown = processor._lanes, processor._shutdown
        self._caller = processor._attempts.caller
        # `Processor.run` refuses an async def. Only `_call` calls the handler.
        self._attempts = processor._attempts = replace(processor._attempts, caller=replace(self._caller, handler=id))
        self._helpers = ThreadPoolExecutor(1 + len(processor._handlers), "kafka-processor")  # one runs the processor
        self._free = threading.Semaphore(concurrency)
        self._calls: set[asyncio.Task[NextTasks]] = set()
        self._ended: asyncio.Future[StopReport] | None = None

    async def run(self) -> StopReport:
        """Run until `stop`, and return the uncommitted work; raise the error that ends the run. Call this only once.

        A cancellation stops the run: calls have ``stop_timeout_seconds`` to return, and finished messages are committed
        before `CancelledError` is raised. A second cancellation ends this wait, and the remaining calls are cancelled.
        """
        if self._ended is not None:
            raise MisuseError("an AsyncProcessor runs only once: create a new AsyncProcessor with a new Processor")
        loop = asyncio.get_running_loop()
        dispatcher = threading.Thread(target=self._dispatch, args=(loop,), name="kafka-handler-dispatch", daemon=True)
        self._processor._handlers = [dispatcher]
        self._ended = loop.run_in_executor(self._helpers, self._processor.run)
        try:
            return await asyncio.shield(self._ended)
        except asyncio.CancelledError as cancelled:
            await self.stop()
            raise cancelled from self._ended.exception() if self._ended.done() else None
        finally:
            for call in self._calls:
                call.cancel()
            self._helpers.shutdown(wait=False)

    async def stop(self, deadline: float | None = None) -> StopReport:
        """Start no more calls, wait up to ``deadline`` seconds for those in flight, commit, and return the uncommitted
        work, like `Processor.stop`. A call within a handler does not wait."""
        self._shutdown.request(deadline)
        if not self._shutdown.over.is_set():
            self._processor.consumer.limit_calls(self._shutdown.until)
        self._lanes.halt()
        if self._ended is not None and asyncio.current_task() not in self._calls:
            ended, _ = await asyncio.wait({self._ended}, timeout=self._shutdown.patience())
            if not ended:
                LOG.warning(STILL_RUNNING)
        return self._shutdown.report or self._processor._report()

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take tasks from the lanes until the lanes are shut, on the dispatcher thread."""
        while self._free.acquire() and (taken := self._lanes.next()) is not None:
            try:
                loop.call_soon_threadsafe(self._start, *taken)
            except RuntimeError as closed:
                self._attempts.failed(closed)
                self._lanes.finished(*taken, (taken[1],), 0)
            del taken  # free the messages while waiting for the next task

    def _start(self, lane: Lane, task: Task) -> None:
        call = asyncio.ensure_future(self._attempt(lane, task))
        self._calls.add(call)
        call.add_done_callback(partial(self._end, lane, task))

    def _end(self, lane: Lane, task: Task, call: asyncio.Task[NextTasks]) -> None:
        """End an attempt, as `Attempts.run` does on a handler thread."""
        self._calls.discard(call)
        self._free.release()
        then = NextTasks((task,))
        try:
            if call.cancelled():
                raise HandlerError(f"the call of the handler for {task} was cancelled")
            then = call.result()
        except Abandoned:
            pass
        except BaseException as error:
            self._attempts.failed(error)
        self._lanes.finished(lane, task, then.tasks, then.rest_seconds)

    async def _attempt(self, lane: Lane, task: Task) -> NextTasks:
        attempts = self._attempts
        if not len(task.part):
            return await self._help(attempts.attempt, lane, task)
        attempts.begin(lane, task)
        call = await self._call(task.part, lambda: lane.closing or self._shutdown.requested)
        if call.error is None and not call.outputs and not attempts.transactional:
            return attempts.conclude(lane, task, call)  # the call does not wait
        return await self._help(attempts.conclude, lane, task, call)

    async def _call(self, part: PartitionBatch, interrupted: Callable[[], bool]) -> Call:
        """Decode the values on another thread, and await the handler, like `Caller.call`."""
        serializer = self._caller.serializer
        try:
            decoded = part if serializer is None else await self._help(decode, part, serializer)
        except (Undecodable, RetryLater) as error:
            return Call(0, failed=len(part), error=error)
        return await self._caller.handle(decoded, interrupted)

    async def _help(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._helpers, call, *arguments)
