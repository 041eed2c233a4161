# SPDX-License-Identifier: Apache-2.0
"""The threads that call the handler, so that the polling thread never waits for one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from monasca_common.kafka.processor.queues import Lane, Lanes, Task


class Workers:
    """``count`` threads that take tasks from lanes and give each to ``work``.

    ``work`` deals with what the handler raises; what escapes it, KeyboardInterrupt included, goes to ``failed``,
    which must halt the lanes.
    """

    def __init__(
        self, lanes: Lanes, count: int, work: Callable[[Lane, Task], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._lanes = lanes
        self._work = work
        self._failed = failed
        # Daemons: a handler that never returns must not keep the process from ending after its deadline.
        self._threads = [
            threading.Thread(target=self._run, name=f"kafka-handler-{number}", daemon=True) for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def __contains__(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def _run(self) -> None:
        while (taken := self._lanes.next()) is not None:
            lane, task = taken
            try:
                self._work(lane, task)
            except BaseException as error:
                self._failed(error)
                self._lanes.finished(lane, task, (task,), 0)
