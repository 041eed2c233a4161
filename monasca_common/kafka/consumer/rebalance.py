# SPDX-License-Identifier: Apache-2.0
"""Rebalances: what happens when partitions are assigned and revoked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monasca_common.kafka.consumer.assignment import Assignment
from monasca_common.kafka.consumer.commit import Committer, check_offsets
from monasca_common.kafka.consumer.start_offsets import StartPositions
from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.base import BEGINNING, ConsumerTransport

LOG = logging.getLogger(__name__)

LOOKUP_SECONDS = 5.0
RETRY_SECONDS = 0.5

_RAISED = object()


class RebalanceListener:
    """Override the methods that you need. The thread that polls (or closes) calls them, within that call.

    The next batch reports what they raise (a `MessagingError` as it is, anything else with a traceback in the log), and
    it is counted (`ConsumerHealth.listener_failures`); the rebalance goes on.
    """

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        """Partitions were assigned. Return the next offset of those whose position is not the committed one, for
        example because a database stores it.

        While it raises, or returns something that is not an offset, the partitions deliver nothing and it is called
        again: a start is never guessed.
        """
        return None

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        """Partitions are about to be revoked. Finish or abandon what is in flight and commit what is done, until
        ``deadline`` (of the transport's monotonic clock); commits work until this returns."""

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions were lost without notice; other members may own them already. Drop what is in flight: it can
        not be committed any more."""


class GivenStarts(RebalanceListener):
    """Every partition starts where its owner says, so that a reader asks no group for offsets, and leaves no trace."""

    def __init__(self, starts: Mapping[TopicPartition, int]) -> None:
        self._starts = starts

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self._starts[partition] for partition in partitions}


class Rebalancer:
    """`RebalanceCallbacks` that keep the assignment, ask the listener, and never let a rebalance break.

    ``report``: adds an error to the next batch. ``stop_seconds``: the budget of one revoke, listener and commits
    together.
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
        self.callback: str | None = None  # the listener's method that is running
        self.deadline: float | None = None  # of the revoke that is running
        self.listener_failures = 0

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._begin(partitions, self._transport.assign_owned)

    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self.release(partitions, self._clock.monotonic() + self._stop_seconds)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        owned = self._assignment.owned.intersection(partitions)
        self._assignment.remove(partitions)
        if owned:
            self._ask("lost", sorted(owned))

    def release(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        """Until ``deadline``, let the listener finish and commits arrive; then give the partitions up."""
        owned = self._assignment.owned.intersection(partitions)
        if not owned:
            return
        self.deadline = deadline
        try:
            self._ask("revoked", sorted(owned), deadline)
            if not self._committer.thread.settle(max(0.0, deadline - self._clock.monotonic())):
                LOG.warning(
                    "a commit has no answer as %d partitions are given up; its work may be repeated", len(owned)
                )
        finally:
            self.deadline = None
            self._assignment.remove(partitions)

    def adopt(self, partitions: Sequence[TopicPartition]) -> None:
        """Read exactly these, without a group's assignment."""
        self._begin(partitions, self._transport.assign)

    def _begin(
        self, partitions: Sequence[TopicPartition], assign: Callable[[Mapping[TopicPartition, int]], None]
    ) -> None:
        self._assignment.add(partitions)
        positions = self._find_starts(partitions)
        # A partition without a position is owned like the rest, as the protocol requires; it stays paused.
        assign({tp: positions.get(tp, BEGINNING) for tp in partitions})
        self._assignment.started(positions)
        self.apply_pauses(partitions)

    def catch_up(self) -> None:
        """Own what the client owns: an exception from a signal can strike a callback before its first line."""
        assigned, owned = self._transport.assignment(), self._assignment.owned
        if owned - assigned:
            self.on_lost(sorted(owned - assigned))
        self._assignment.add(assigned - owned)
        self._retry_at = 0.0

    def retry_starts(self) -> None:
        """Ask again for the starts that are still unknown, `RETRY_SECONDS` after the last attempt."""
        if self._clock.monotonic() < self._retry_at:
            return
        positions = self._find_starts(sorted(self._assignment.waiting))
        if not positions:
            return
        self._transport.assign_owned(positions)
        self._assignment.started(positions)
        self.apply_pauses(list(positions))

    def apply_pauses(self, partitions: Sequence[TopicPartition]) -> None:
        """Set the current pauses in the client, because it keeps a pause beyond an assignment."""
        still = self._assignment.paused | self._assignment.waiting
        self._transport.pause([tp for tp in partitions if tp in still])
        self._transport.resume([tp for tp in partitions if tp not in still])

    def _find_starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The position of each partition; `retry_starts` asks again for those without one."""
        if not partitions:
            return {}
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
                LOG.warning("%d partitions wait, because their start is not known: %s", waiting, error)
                self._report(error)
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        return positions

    def _ask(self, what: str, *arguments: object) -> Any:
        self.callback = what
        try:
            answer = getattr(self.listener, what)(*arguments)
            if what == "assigned":
                check_offsets(answer or {})
            return answer
        except MessagingError as error:
            # An error of our own kind is intended: the next poll reports it, at most once a second.
            self.listener_failures += 1
            self._report(error)
            return _RAISED
        except Exception as error:
            self.listener_failures += 1
            LOG.exception("the rebalance listener raised in %s; the rebalance goes on", what)
            self._report(MessagingError(f"the rebalance listener raised {type(error).__name__} in {what}"))
            return _RAISED
        finally:
            self.callback = None
