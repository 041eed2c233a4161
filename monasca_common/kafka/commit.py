# SPDX-License-Identifier: Apache-2.0
"""Commits whose answer is waited for, but never longer than the caller can afford.

A broker can hold a commit for 45 seconds. So one helper thread sends the commits, one after the other, and
closes the client after the last; the caller waits its budget and is told `CommitUnknown` when that is over.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import CommitUnknown, MessagingError, StaleCommit, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.offsets import Progress
from monasca_common.kafka.transport.base import ConsumerTransport

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of the commit of one partition: ``committed``, or else ``error`` tells why not.

    ``next_offset`` is what was to be committed. ``error`` is `StaleCommit` (not sent), `CommitUnknown` (no answer
    in time), `TopicRecreated` (not sent), or the `TransportError` that the broker answered.
    """

    next_offset: int
    error: MessagingError | None = None

    @property
    def committed(self) -> bool:
        return self.error is None

    @property
    def stale(self) -> bool:
        return isinstance(self.error, StaleCommit)


class _Job:
    """Work for the helper thread. Whoever claims it first has it: the thread to run it, or its caller to drop it."""

    def __init__(self, run: Callable[[], None], clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._claim = threading.Lock()
        self._finished = threading.Lock()
        self._finished.acquire()

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._run()
        finally:
            self._finished.release()

    def wait(self, timeout: float) -> bool:
        if not self._clock.wait(self._finished, timeout):
            return False
        self._finished.release()
        return True

    def drop(self) -> bool:
        """Whether it will surely not run."""
        return self._claim.acquire(blocking=False)


class Committer:
    """Sends commits of partitions whose epoch, as ``refusal`` tells, is not over when their turn comes.

    ``refusal``: the reason not to send a partition's progress, or ``None``; asked on the helper thread.
    """

    def __init__(
        self, transport: ConsumerTransport, refusal: Callable[[TopicPartition, Progress], MessagingError | None]
    ) -> None:
        self._transport = transport
        self._clock = transport.clock
        self._refusal = refusal
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def commit(self, progress: Mapping[TopicPartition, Progress], timeout: float) -> dict[TopicPartition, CommitResult]:
        """Commit and wait up to ``timeout`` seconds for the answers; one result for each partition."""
        results: dict[TopicPartition, CommitResult] = {}
        job = self._submit(lambda: results.update(self._send(progress)))
        if job.wait(timeout):
            return results
        sent = "was not sent yet" if job.drop() else "has no answer yet"
        unknown = CommitUnknown(
            f"the commit of {len(progress)} partitions {sent} after {timeout:.1f} s: is the group's coordinator "
            "reachable, and is the group permitted? what is not stored will be read again"
        )
        return {tp: CommitResult(at.next_offset, unknown) for tp, at in progress.items()}

    def settle(self, timeout: float) -> bool:
        """Wait until nothing is on its way; whether that was so within ``timeout`` seconds."""
        if self._thread is None:
            return True
        return self._submit(lambda: None).wait(timeout)

    def close(self, release: Callable[[], None], timeout: float) -> bool:
        """Call ``release`` after the last commit, and end; whether both happened within ``timeout`` seconds."""

        def finish() -> None:
            try:
                release()
            except MessagingError as error:
                LOG.warning("closing a consumer: %s", error)
            raise SystemExit  # ends the helper thread, and nothing else

        return self._submit(finish).wait(timeout)

    def _send(self, progress: Mapping[TopicPartition, Progress]) -> dict[TopicPartition, CommitResult]:
        results: dict[TopicPartition, CommitResult] = {}
        offsets: dict[TopicPartition, int] = {}
        for partition, at in progress.items():
            refused = self._refusal(partition, at)
            if refused is None:
                offsets[partition] = at.next_offset
            else:
                results[partition] = CommitResult(at.next_offset, refused)
        answers: Mapping[TopicPartition, MessagingError | None] = {}
        if offsets:
            answers = self._answers(offsets)
        unanswered = TransportError("the answer to the commit does not name the partition")
        for partition, offset in offsets.items():
            results[partition] = CommitResult(offset, answers.get(partition, unanswered))
        return results

    def _answers(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, MessagingError | None]:
        try:
            return self._transport.commit(offsets)
        except MessagingError as error:
            return dict.fromkeys(offsets, error)
        except Exception as error:
            # Whatever it is, the thread must live on: the next commit depends on it.
            LOG.exception("a commit of %d partitions broke", len(offsets))
            return dict.fromkeys(offsets, TransportError(f"{type(error).__name__}: {error}"))

    def _submit(self, run: Callable[[], None]) -> _Job:
        job = _Job(run, self._clock)
        with self._starting:
            if self._thread is None:
                # A daemon: a broker that holds a commit must not hold the end of the process as well.
                self._thread = threading.Thread(target=self._work, name="kafka-commit", daemon=True)
                self._thread.start()
        self._jobs.put(job)
        return job

    def _work(self) -> None:
        while True:
            self._jobs.get().run()
