# SPDX-License-Identifier: Apache-2.0
"""A plain bulk: bytes without headers, under ids of ours, that one caller waits for.

While all goes well nobody looks at one message of it, so it is one entry of the book and its messages share what
they have in common: a `Pending` for each would cost a third of a `publish`. The first word that is not an
acknowledgement, and whoever else wants to know of single messages, has it broken up into `Pending`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from types import MethodType
from typing import Any

from monasca_common.kafka.delivery import Outcome
from monasca_common.kafka.producing.latch import Latch
from monasca_common.kafka.producing.ledger import Ledger
from monasca_common.kafka.producing.pending import Pending
from monasca_common.kafka.transport.base import RawMessage


class Bulk:
    __slots__ = (
        "_offsets",
        "_partitions",
        "_pendings",
        "key",
        "latch",
        "ledger",
        "left",
        "message_ids",
        "overhead_bytes",
        "queued_at",
        "records",
        "size",
        "topic",
    )

    def __init__(
        self,
        ledger: Ledger,
        topic: str,
        records: list[bytes],
        key: bytes | None,
        message_ids: list[bytes] | None,
        overhead_bytes: int,
    ) -> None:
        """``overhead_bytes``: what a message takes of the budget beside its record."""
        self.ledger = ledger
        self.topic = topic
        self.records = records  # until all are delivered
        self.key = key
        self.message_ids = message_ids
        self.overhead_bytes = overhead_bytes
        self.size = sum(map(len, records)) + overhead_bytes * len(records)
        self.queued_at = ledger.now
        self.left = len(records)
        self.latch = Latch(len(records))
        self._partitions: list[int | None] = [None] * len(records)  # None: still on its way
        self._offsets: list[int | None] = [None] * len(records)
        self._pendings: list[Pending] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def callbacks(self) -> Iterator[Callable[[Any, RawMessage], None]]:
        """For each message the one that librdkafka calls: of all objects that know their place, the cheapest."""
        partitions, offsets = self._partitions, self._offsets

        def answered(index: int, error: Any, message: RawMessage) -> None:
            if error is not None or self._pendings is not None:
                self.ledger.break_up(self)[index](error, message)
                return
            partitions[index] = message.partition()
            offsets[index] = message.offset()
            self.left -= 1
            if not self.left:
                self.ledger.settle_delivered(self)

        return map(MethodType, repeat(answered), range(self.left))

    @property
    def delivered(self) -> bool:
        """Whether all of it is, and nobody needed to know of one message."""
        return not self.left and self._pendings is None

    def pendings(self) -> list[Pending]:
        """Its messages, each of which speaks for itself from now on: for `Ledger.break_up`, until all is delivered."""
        if self._pendings is None:
            self._pendings = [self._pending(index) for index in range(len(self))]
        return self._pendings

    def _pending(self, index: int) -> Pending:
        pending = Pending()
        pending.ledger = self.ledger
        pending.topic = self.topic
        pending.key = self.key
        pending.message_id = None if self.message_ids is None else self.message_ids[index]
        pending.queued_at = self.queued_at
        pending.watchers = (self.latch,)
        pending.successor = None
        partition = self._partitions[index]
        if partition is None:
            pending.record = self.records[index]
            pending.size = len(self.records[index]) + self.overhead_bytes
            pending.outcome = None
        else:
            pending.record = None
            pending.size = 0  # of the budget
            pending.outcome = Outcome.DELIVERED
            pending.partition = partition
            pending.offset = self._offsets[index]
        return pending
