# SPDX-License-Identifier: Apache-2.0
"""Rebalances: the assignment and revocation of partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monasca_common.kafka.consumer.assignment import Assignment
from monasca_common.kafka.consumer.commit import Committer, check_offsets
from monasca_common.kafka.consumer.start_offsets import StartPositions
from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.base import ConsumerTransport

LOG = logging.getLogger(__name__)

LOOKUP_SECONDS = 5.0
RETRY_SECONDS = 0.5
_REST_FACTOR = 4.0  # the pause after a request, as a multiple of its duration, in which other partitions are read

_RAISED = object()


class RebalanceListener:
    """Receives rebalance events; override the methods that you need. The thread that polls (or closes) calls them.

    The next batch reports the exceptions of these methods (a `MessagingError` unchanged, others with a traceback in the
    log), `ConsumerHealth.listener_failures` counts them, and the rebalance continues.
    """

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        """Partitions were assigned. Return the next offset of each partition that does not start at its committed
        offset, for example because a database stores its position. If this method raises, or returns an invalid offset,
        the partitions deliver nothing and the method is called again, because a start offset is never guessed.
        """
        return None

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        """Partitions will be revoked. Finish or abandon messages in flight, and commit finished messages, until
        ``deadline`` (of the transport's monotonic clock); commits work until this returns."""

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions were lost without notice; other members may already own them. Drop messages in flight: they can no
        longer be committed."""


class GivenStarts(RebalanceListener):
    """Starts every partition at the caller's offset, for a reader without committed offsets."""

    def __init__(self, starts: Mapping[TopicPartition, int]) -> None:
        self._starts = starts

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self._starts[partition] for partition in partitions}


class Rebalancer:
    """`RebalanceCallbacks` that update the assignment, call the listener, and complete every rebalance.

    ``report``: adds an error to the next batch. ``stop_seconds``: the time budget of one revoke, which the listener and
    commits share.
    """

    def __init__(
        self,
        transport: ConsumerTransport,
        assignment: Assignment,
        starts: StartPositions,
        committer: Committer,
        report: Callable[[MessagingError], None],
        *,
        stop_seconds: float,
    ) -> None:
        self._transport = transport
        self._clock = transport.clock
        self._assignment = assignment
        self._starts = starts
        self._committer = committer
        self._report = report
        self._stop_seconds = stop_seconds
        self._retry_at = 0.0
        self.listener = RebalanceListener()
        self.callback: str | None = None  # the current method of the listener
        self.deadline: float | None = None  # end of the current revoke
        self.listener_failures = 0

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.begin(partitions, self._transport.assign_owned)

    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self.release(partitions, self._clock.monotonic() + self._stop_seconds)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        owned = self._assignment.owned.intersection(partitions)
        self._assignment.remove(partitions)
        if owned:
            self._ask("lost", sorted(owned))

    def release(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        """Until ``deadline``, let the listener finish and wait for commits; then release the partitions."""
        owned = self._assignment.owned.intersection(partitions)
        if not owned:
            return
        self.deadline = deadline
        try:
            self._ask("revoked", sorted(owned), deadline)
            if not self._committer.thread.settle(max(0.0, deadline - self._clock.monotonic())):
                LOG.warning(
                    "a commit has no response while %d partitions are released; their messages may be repeated",
                    len(owned),
                )
        finally:
            self.deadline = None
            self._assignment.remove(partitions)

    def begin(
        self, partitions: Sequence[TopicPartition], assign: Callable[[Mapping[TopicPartition, int]], None]
    ) -> None:
        """Start to read these partitions. ``assign``: assigns them to the client at these offsets."""
        self._assignment.add(partitions)
        positions = self._find_starts(partitions)
        # The protocol requires that partitions without a position are also owned; they remain paused. Their offset is a
        # number, because librdkafka looks up a logical offset and uses it even if a position was assigned since then.
        assign({tp: positions.get(tp, 0) for tp in partitions})
        self._assignment.started(positions)
        self.apply_pauses(partitions)

    def catch_up(self) -> None:
        """Adopt the client's partitions, because the exception of a signal handler can interrupt a callback before its
        first line."""
        assigned, owned = self._transport.assignment(), self._assignment.owned
        if owned - assigned:
            self.on_lost(sorted(owned - assigned))
        self._assignment.add(assigned - owned)
        self._retry_at = 0.0

    def retry_starts(self) -> None:
        """Repeat the request for unknown starts `RETRY_SECONDS` after the last attempt, or later after a slow one."""
        if self._clock.monotonic() < self._retry_at:
            return
        positions = self._find_starts(sorted(self._assignment.waiting))
        if not positions:
            return
        self._transport.assign_owned(positions)
        self._assignment.started(positions)
        self.apply_pauses(list(positions))

    def apply_pauses(self, partitions: Sequence[TopicPartition]) -> None:
        """Apply the current pauses to the client, because the client keeps a pause after an assignment ends."""
        still = self._assignment.paused | self._assignment.waiting
        self._transport.pause([tp for tp in partitions if tp in still])
        self._transport.resume([tp for tp in partitions if tp not in still])

    def _find_starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the position of each partition; `retry_starts` repeats the request for partitions without a
        position."""
        if not partitions:
            return {}
        begun = self._clock.monotonic()
        chosen = self._ask("assigned", list(partitions))
        positions = {} if chosen is _RAISED else {tp: chosen[tp] for tp in partitions if tp in (chosen or ())}
        rest = [tp for tp in partitions if tp not in positions]
        if chosen is not _RAISED:
            found, errors = self._starts.find(rest, LOOKUP_SECONDS) if rest else ({}, [])
            positions |= found
            if len(positions) == len(partitions):
                return positions
            waiting = len(partitions) - len(positions)
            for error in errors:
                LOG.warning("%d partitions wait because their start offset is unknown: %s", waiting, error)
                self._report(error.with_traceback(None))  # the traceback would keep this frame alive
        now = self._clock.monotonic()
        others_are_read = positions or self._assignment.positions
        self._retry_at = now + max(RETRY_SECONDS, (now - begun) * _REST_FACTOR if others_are_read else 0.0)
        return positions

    def _ask(self, what: str, *arguments: object) -> Any:
        self.callback = what
        try:
            answer = getattr(self.listener, what)(*arguments)
            if what == "assigned":
                check_offsets(answer or {})
            return answer
        except Exception as error:
            self.listener_failures += 1
            if not isinstance(error, MessagingError):  # which the next poll reports, at most once a second
                LOG.exception("the rebalance listener raised in %s; the rebalance continues", what)
                error = MessagingError(f"the rebalance listener raised {type(error).__name__} in {what}")
            self._report(error)
            return _RAISED
        finally:
            self.callback = None
