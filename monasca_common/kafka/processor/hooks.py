# SPDX-License-Identifier: Apache-2.0
"""Observers of the processor: what happened and when, for metrics, traces and audits.

A hook watches. It cannot change an outcome, and one that raises is logged and counted, never obeyed:
no configuration can remove a guarantee. Hooks are called from the polling thread and from the handler threads.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from monasca_common.kafka.message import Batch, Message, PartitionBatch, TopicPartition

LOG = logging.getLogger(__name__)


class Hook:
    """Override what you want to see; every method does nothing by default."""

    def after_poll(self, batch: Batch) -> None:
        """A poll returned, perhaps with nothing."""

    def before_handle(self, part: PartitionBatch, attempt: int) -> None:
        """The handler is about to be called with ``part`` for the ``attempt``-th time (from 1)."""

    def after_handle(self, part: PartitionBatch, attempt: int, error: BaseException | None) -> None:
        """The handler returned (``error`` is ``None``) or raised; its outputs are not acknowledged yet."""

    def before_dead_letter(self, message: Message, error: Exception) -> None:
        """The message is about to go to the dead letters."""

    def after_dead_letter(self, message: Message, error: Exception) -> None:
        """The dead letter is acknowledged; its message is not committed yet."""

    def before_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets (next to read) are about to be committed, alone or in a transaction."""

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        """What came of each partition's commit; ``None`` is success, `TransactionError` that its transaction was
        aborted. A process that ends without knowing calls it not at all."""

    def after_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions were revoked; their finished work is committed."""

    def after_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions were lost; nothing of them was committed any more."""


class Hooks:
    """Several hooks as one: ``before_*`` in the order given, ``after_*`` in reverse, like an onion."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._orders: dict[str, tuple[Hook, ...]] = {"before": (), "after": ()}
        for hook in hooks:
            self.add(hook)
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()  # by class of hook

    def add(self, hook: Hook) -> None:
        """The innermost one from now on."""
        self._orders = {"before": (*self._orders["before"], hook), "after": (hook, *self._orders["after"])}

    def call(self, event: str, *args: object) -> None:
        """Call ``event`` (a method of `Hook`) on every hook that has something to say about it."""
        for hook in self._orders[event.partition("_")[0]]:
            try:
                getattr(hook, event)(*args)
            except Exception:
                name = type(hook).__qualname__
                with self._lock:
                    self.failures[name] += 1
                LOG.exception("hook %s raised in %s; the processor goes on", name, event)
