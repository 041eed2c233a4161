# SPDX-License-Identifier: Apache-2.0
"""Start offsets of a group: its committed offsets, or the offsets that the option ``start`` selects, which are
committed immediately.

If the offsets of ``latest`` were not committed as soon as they are known, a group that crashes before its first commit
would restart at a later end and skip the messages in between.

The owner of partition 0 commits the start offsets of the whole topic in one request, and the other members wait for
that commit. Therefore, if partition 0 of a topic has an offset, a partition without an offset was added later. A reader
of chosen partitions commits only the start offsets of these partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from monasca_common.kafka.consumer.commit import Committer
from monasca_common.kafka.errors import MessagingError, RetriableError
from monasca_common.kafka.message import OffsetAndEpoch, TopicPartition
from monasca_common.kafka.settings import start_ms
from monasca_common.kafka.transport.base import ConsumerTransport

LOG = logging.getLogger(__name__)

NO_EPOCH = 0  # a start offset is committed before the assignments that use it

FIRST_OWNER_SECONDS = 10.0  # the owner of partition 0 has two attempts of 5 s, if it reads no other partition

_AT_LEAST_SECONDS = 0.1


class StartPositions:
    """Finds the start offsets of partitions.

    ``start``: see `ConsumerSettings`. ``in_group``: whether the group assigns the partitions; chosen partitions do not
    wait for other members. Raises `ConfigurationError` for an invalid ``start``.
    """

    def __init__(self, transport: ConsumerTransport, committer: Committer, start: str, *, in_group: bool) -> None:
        self._in_group = in_group
        self._waiting_since: dict[str, float] = {}  # by topic
        self._transport = transport
        self._clock = transport.clock
        self._committer = committer
        self._start = start.lower()
        self._start_ms = start_ms(start)

    def find(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> tuple[dict[TopicPartition, int], list[MessagingError]]:
        """Return the position of each partition, except those that wait for another member's commit, and the errors of
        topics whose offsets are not available within ``timeout`` seconds."""
        deadline = self._clock.monotonic() + timeout
        try:
            found, missing = _split(self._transport.committed(partitions, timeout))
        except MessagingError as error:
            return {}, [error]
        errors = []
        topics = {partition.topic for partition in missing}
        for topic in {partition.topic for partition in found} - topics:
            self._waiting_since.pop(topic, None)
        for topic in sorted(topics):
            try:
                found |= self._begin(topic, [tp for tp in missing if tp.topic == topic], deadline)
            except MessagingError as error:
                errors.append(error)
        return found, errors

    def resolve(self, partitions: Sequence[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """Return the offsets that the option selects, regardless of committed offsets, and do not commit them."""
        return self._resolve(partitions, self._clock.monotonic() + timeout) if partitions else {}

    def _begin(self, topic: str, wanted: list[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
        if not self._in_group:
            starts = self._resolve(wanted, deadline)
            self._write_down(starts, wanted, deadline)
            return starts
        first = TopicPartition(topic, 0)
        everything = [first, *wanted]
        if first in wanted:
            count = self._transport.partition_count(topic, self._left(deadline))
            everything = [TopicPartition(topic, number) for number in range(count)]
            if not set(wanted).issubset(everything):
                raise RetriableError(f"a broker does not know all assigned partitions of topic {topic} yet")
        # One request reads all start offsets of a topic, and one request below commits them, so that other members see
        # all or none of them.
        found, missing = _split(self._transport.committed(everything, self._left(deadline)))
        own = [tp for tp in wanted if tp in missing]
        if first in found:
            # The group has offsets of this topic, so partitions without one were added later and are read from their
            # beginning.
            starts = self._transport.first_offsets(own, self._left(deadline))
        elif first in wanted:
            # Members that have stopped waiting commit their own start offsets, which a commit here could replace.
            starts = self._resolve(own if found else missing, deadline)
        elif self._waits(topic):
            return {tp: found[tp] for tp in wanted if tp in found}
        else:
            starts = self._resolve(own, deadline)
        self._write_down(starts, own, deadline)
        self._waiting_since.pop(topic, None)
        return {tp: starts[tp] if tp in starts else found[tp] for tp in wanted}

    def _waits(self, topic: str) -> bool:
        """Return whether to wait for the owner of partition 0. If every member committed the start offsets of the
        topic, a late commit would replace the progress of a faster member."""
        now = self._clock.monotonic()
        if now < self._waiting_since.setdefault(topic, now) + FIRST_OWNER_SECONDS:
            return True
        LOG.warning(
            "no member has committed an offset of %s/0 in %g s; this member uses the option start for its partitions",
            topic,
            FIRST_OWNER_SECONDS,
        )
        return False

    def _write_down(self, starts: dict[TopicPartition, int], own: list[TopicPartition], deadline: float) -> None:
        if not starts:
            return
        progress = {tp: OffsetAndEpoch(NO_EPOCH, offset) for tp, offset in starts.items()}
        results = self._committer.commit(progress, self._left(deadline))
        for partition in own:
            error = results[partition].error
            if error is not None:
                raise error

    def _resolve(self, partitions: Sequence[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
        if self._start == "earliest":
            return self._transport.first_offsets(partitions, self._left(deadline))
        if self._start_ms is None:
            return self._transport.end_offsets(partitions, self._left(deadline))
        times = dict.fromkeys(partitions, self._start_ms)
        return self._transport.offsets_for_times(times, self._left(deadline))

    def _left(self, deadline: float) -> float:
        return max(_AT_LEAST_SECONDS, deadline - self._clock.monotonic())


def _split(
    offsets: dict[TopicPartition, int | None],
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    known = {tp: offset for tp, offset in offsets.items() if offset is not None}
    return known, [tp for tp in offsets if tp not in known]
