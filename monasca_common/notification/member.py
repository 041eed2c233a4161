# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group of notifications: its consumer, its loop, and its restart after a failure."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable

from monasca_common.kafka import (
    DeadLetters,
    MessagingError,
    Output,
    Processor,
    RetryPolicy,
    open_consumer,
    open_producer,
    run_with_restarts,
)
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import Message
from monasca_common.notification.settings import StreamOf

LOG = logging.getLogger(__name__)

# Back-off for an unavailable database: rare enough not to be a load, frequent enough to resume within seconds.
_RETRY = RetryPolicy(backoff_seconds=0.1, max_backoff_seconds=3.0)
_CLOSE_SECONDS = 1.0


class NotificationMember:
    """Calls ``handler`` with what is in the stream's topic until `stop`. Create it after the fork."""

    def __init__(
        self, stream: StreamOf, handler: Callable[[Message], Iterable[Output]], threads: int, clock: Clock
    ) -> None:
        self._stream = stream
        self._handler = handler
        self._threads = threads
        self._clock = clock
        self._stopping = threading.Event()
        self._processor: Processor | None = None

    def run(self) -> None:
        """After a failure it restarts with a back-off. Raises nothing."""
        topics = ", ".join(self._stream.consumer.topics)
        run_with_restarts(self._serve, topics, self._stopping, self._clock, expected=(MessagingError,))

    def stop(self) -> None:
        """Finish what is being sent, commit, and leave the group; returns when that is done, in bounded time."""
        self._stopping.set()
        if self._processor is not None:
            self._processor.stop()

    def _serve(self) -> None:
        """One consumer, from its first poll to its close."""
        with contextlib.ExitStack() as stack:
            producer = open_producer(self._stream.producer)
            stack.callback(producer.close, _CLOSE_SECONDS)
            consumer = open_consumer(self._stream.consumer)
            stack.callback(consumer.close, _CLOSE_SECONDS)
            processor = Processor(
                consumer,
                self._handler,
                per_message=True,
                producer=producer,
                retry=_RETRY,
                dead_letters=DeadLetters(),
                order="key",
                threads=self._threads,
            )
            self._processor = processor
            if not self._stopping.is_set():
                processor.run()
