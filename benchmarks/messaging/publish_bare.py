# SPDX-License-Identifier: Apache-2.0
"""What the client itself leaves to whoever wants outcomes of bulks: each message has an id in a header and a callback
that counts; nothing is kept of it, and no failure is told from another. One thread flushes; several that share a
producer have another one that polls, and a linger of 1 ms, which of what was tried was fastest."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

from confluent_kafka import Producer

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.payload import VALUES

BULK = 100
_SHARED_LINGER_MS = 1


class _Bulk:
    __slots__ = ("done", "failed", "left")

    def __init__(self) -> None:
        self.left = BULK
        self.failed = 0
        self.done = threading.Lock()
        self.done.acquire()

    def __call__(self, error: object, message: object) -> None:
        if error is not None:
            self.failed += 1
        self.left -= 1
        if not self.left:
            self.done.release()


def run(job: Job) -> Figures:
    options = producer_options(job)
    shared = job.threads > 1
    producer = Producer({**options, "linger.ms": _SHARED_LINGER_MS} if shared else options)
    records = VALUES[:BULK]
    bulks = job.messages // BULK // job.threads
    numbers = itertools.count()
    failures: list[int] = []

    def publish() -> int:
        bulk = _Bulk()
        for record in records:
            header = [("message-id", b"producer%d" % next(numbers))]
            producer.produce(job.topic, record, on_delivery=bulk, headers=header)
        if not shared:
            producer.flush()
        bulk.done.acquire()
        return bulk.failed

    with _polling(producer, wanted=shared):
        failures.append(publish())
        threads = [
            threading.Thread(target=lambda: failures.append(sum(publish() for _ in range(bulks))))
            for _ in range(job.threads)
        ]
        with Stopwatch() as watch:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if any(failures):
        raise RuntimeError(f"{sum(failures)} were not acknowledged")
    messages = bulks * BULK * job.threads
    return Figures(messages, watch.seconds, watch.cpu_seconds, written=messages + BULK, versions=versions())


@contextlib.contextmanager
def _polling(producer: Producer, *, wanted: bool) -> Iterator[None]:
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=poll)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if wanted:
            thread.join()


if __name__ == "__main__":
    main(run)
