# SPDX-License-Identifier: Apache-2.0
"""Observers of a processor, for metrics, traces and audits.

A hook cannot change an outcome: its exceptions are logged, so that no configured hook can break a guarantee. Hooks are
called on the polling thread and on the handler threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from monasca_common.kafka.message import Batch, Message, PartitionBatch, TopicPartition

LOG = logging.getLogger(__name__)


class Hook:
    """An observer; override the methods that you need. The default methods do nothing."""

    def after_poll(self, batch: Batch) -> None:
        """A poll returned, possibly without messages."""

    def before_handle(self, part: PartitionBatch, attempt: int) -> None:
        """The handler will be called with ``part``; ``attempt`` counts these calls from 1."""

    def after_handle(self, part: PartitionBatch, attempt: int, error: BaseException | None) -> None:
        """The handler returned (``error`` is ``None``) or raised; its outputs are not acknowledged yet."""

    def before_dead_letter(self, message: Message, error: Exception) -> None:
        """The message will become a dead letter."""

    def after_dead_letter(self, message: Message, error: Exception) -> None:
        """The dead letter is acknowledged; its message is not committed yet."""

    def before_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets (next to read) will be committed, with or without a transaction."""

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        """The commit returned these results by partition: ``None`` means success, and `TransactionError` means that the
        transaction was aborted. This method is not called if the process ends before the result is known."""

    def after_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions were revoked; their finished work is committed."""

    def after_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions were lost; their finished work could not be committed."""


class Hooks:
    """Calls several hooks: the ``before_*`` methods in the given order, and the ``after_*`` methods in reverse
    order."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = tuple(hooks)

    def add(self, hook: Hook) -> None:
        """Add the innermost hook."""
        self._hooks += (hook,)

    def call(self, event: str, *args: object) -> None:
        """Call ``event`` (a method of `Hook`) on every hook."""
        for hook in self._hooks if event.startswith("before_") else reversed(self._hooks):
            try:
                getattr(hook, event)(*args)
            except Exception:
                LOG.exception("hook %s raised in %s; the processor continues", type(hook).__qualname__, event)
