# SPDX-License-Identifier: Apache-2.0
"""Commits that wait for the broker's response, within the caller's time budget.

A broker can delay a commit for 45 seconds. Therefore, the client's thread sends the commits one after the other, and
closes the client only after the last one. A caller whose time budget ends earlier gets `CommitUnknown`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from monasca_common.kafka.errors import CommitUnknown, MessagingError, MisuseError, StaleCommit, TransportError
from monasca_common.kafka.message import OffsetAndEpoch, TopicPartition
from monasca_common.kafka.transport.base import ConsumerTransport
from monasca_common.kafka.transport.bounded import COMMIT_SECONDS
from monasca_common.kafka.transport.client_thread import ClientThread

LOG = logging.getLogger(__name__)

_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of the commit of one partition: ``committed``, or the reason in ``error``.

    ``next_offset`` is the offset to commit. ``error`` is `StaleCommit` (not sent), `CommitUnknown` (no response in
    time), `TopicRecreated` (not sent), or the broker's `TransportError`.
    """

    next_offset: int
    error: MessagingError | None = None

    @property
    def committed(self) -> bool:
        return self.error is None

    @property
    def stale(self) -> bool:
        return isinstance(self.error, StaleCommit)


class Committer:
    """Sends commits of partitions. ``refusal`` is called on the client's thread before a commit is sent, and returns
    the reason why a partition's offset must not be sent, or ``None``.
    """

    def __init__(
        self,
        thread: ClientThread,
        transport: ConsumerTransport,
        refusal: Callable[[TopicPartition, OffsetAndEpoch], MessagingError | None],
    ) -> None:
        self.thread = thread
        self._transport = transport
        self._refusal = refusal

    def commit(
        self, progress: Mapping[TopicPartition, OffsetAndEpoch], timeout: float
    ) -> dict[TopicPartition, CommitResult]:
        """Commit, wait up to ``timeout`` seconds for the responses, and return a result for each partition."""
        try:
            call = self.thread.submit("commit", lambda: self._send(progress), COMMIT_SECONDS)
            if self.thread.wait(call, timeout):
                return call.result()
        except MessagingError as error:  # the client is poisoned, or was closed in the meantime
            return {tp: CommitResult(at.next_offset, error) for tp, at in progress.items()}
        sent = "was not sent yet" if call.drop() else "has no response yet"
        unknown = CommitUnknown(
            f"the commit of {len(progress)} partitions {sent} after {timeout:.1f} s: is the group's coordinator "
            "reachable, and do the ACLs permit the group? uncommitted messages will be read again"
        )
        return {tp: CommitResult(at.next_offset, unknown) for tp, at in progress.items()}

    def _send(self, progress: Mapping[TopicPartition, OffsetAndEpoch]) -> dict[TopicPartition, CommitResult]:
        answers = {partition: self._refusal(partition, at) for partition, at in progress.items()}
        offsets = {tp: at.next_offset for tp, at in progress.items() if answers[tp] is None}
        if offsets:
            unanswered = TransportError("the response to the commit does not include the partition")
            answers |= {**dict.fromkeys(offsets, unanswered), **self._answers(offsets)}
        return {tp: CommitResult(at.next_offset, answers[tp]) for tp, at in progress.items()}

    def _answers(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, MessagingError | None]:
        try:
            return self._transport.commit(offsets)
        except MessagingError as error:
            return dict.fromkeys(offsets, error)
        except Exception as error:
            # The thread must continue after any error, because the next commit depends on it.
            LOG.exception("a commit of %d partitions raised an unexpected error", len(offsets))
            return dict.fromkeys(offsets, TransportError(f"{type(error).__name__}: {error}"))


def check_offsets(offsets: Mapping[TopicPartition, object]) -> None:
    """Raise `MisuseError` for an invalid offset: the client interprets negative numbers as special positions, such as
    "the end"."""
    for (topic, number), offset in offsets.items():
        if not isinstance(offset, int) or not 0 <= offset <= _MAX_OFFSET:
            raise MisuseError(
                f"{offset!r} is not an offset of {topic}/{number}: a next offset must be an integer of at least 0"
            )
