# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group: it stores what it reads, and reports how it is."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial

from monasca_common.audit.reader_audit import audit_tap
from monasca_common.kafka import DeadLetters, Hook, KafkaConsumer, Processor
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.models import alarm, event, log
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.rows import Decoded, Measurement
from monasca_common.persister.handler import Decoder, RowsHandler
from monasca_common.persister.settings import GroupSettings
from monasca_common.persister.start_offsets import StartOffsets
from monasca_common.persister.status import MemberState, MemberStatus, Status
from monasca_common.persister.status_board import StatusBoard
from monasca_common.persister.writer_pool import WriterPool
from monasca_common.runtime.member import DATABASE_RETRY, Member
from monasca_common.runtime.polling import LAG_SECONDS
from monasca_common.storage.base import Capability, Kind, Storage
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

_TELL_SECONDS = 1.0
_PROBE_SECONDS = 5.0
_PROBE_PATIENCE_SECONDS = 2.0


class PersisterMember(Member):
    """Stores what one consumer of ``group`` reads."""

    expected = (MessagingError, StorageError)

    def __init__(
        self,
        group: GroupSettings,
        storage: Storage,
        dead_letters: DeadLetters,
        board: StatusBoard,
        status: Status,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            f"[{group.name}]",
            group.consumer,
            group.producer,
            tap=audit_tap(group.audit, "database", group.consumer.group_id),
            clock=clock,
        )
        self._group = group
        self._storage = storage
        self._dead_letters = dead_letters
        self._board = board
        self._status = MemberStatus(status, self.clock)
        self._over = threading.Event()

    def run(self) -> None:
        teller = threading.Thread(target=self._tell, name=f"{self._group.kind}-status", daemon=True)
        teller.start()
        super().run()
        self._status.enter(MemberState.STOPPED)
        self._over.set()
        teller.join(_TELL_SECONDS)
        LOG.debug("%s stopped: %s", self._status.name, self._status.report({}))
        self._post()

    def failed(self, error: Exception) -> None:
        self._status.enter(MemberState.FAILED, str(error))

    def restarted(self) -> None:
        self._status.restarted()

    def open(self, stack: contextlib.ExitStack) -> Processor:
        writers = WriterPool(self._storage)
        stack.callback(writers.close)
        fail = partial(self.fail, stack)
        starts = StartOffsets(writers, self._status, fail)
        consumer, producer, hooks = self.open_clients(stack, starts.positions)
        # Without offsets in the database, Kafka's count: rows are stored at least once, and overwrite by key.
        if Capability.TRANSACTIONAL_OFFSETS in self._storage.capabilities:
            starts.attach(consumer)
        group_id = consumer.settings.group_id
        handler = RowsHandler(self._group.kind, group_id, decoder(self._group), writers, starts, self._status, fail)
        processor = Processor(
            consumer,
            handler,
            producer=producer,
            retry=DATABASE_RETRY,
            dead_letters=self._dead_letters,
            threads=self._group.threads,
            max_wait_seconds=consumer.settings.max_wait_time_seconds,
            accounted=handler.accounted,
            hooks=[_StatusHook(self._status), *hooks],
        )
        self._status.begin()
        return processor

    # What it reports

    def _tell(self) -> None:
        probe_at = 0.0
        while not self._over.is_set():
            if self.clock.monotonic() >= probe_at:
                self._probe()
                probe_at = self.clock.monotonic() + _PROBE_SECONDS
            self._post()
            self._over.wait(_TELL_SECONDS)

    def _probe(self) -> None:
        """Send a request to the brokers, because a silent consumer may have nothing to read, or no broker."""
        consumer = self.consumer
        if consumer is None:
            return
        try:
            consumer.partition_count(self._group.consumer.topics[0], _PROBE_PATIENCE_SECONDS)
        except MessagingError as error:
            self._status.kafka(error)
        else:
            self._status.kafka(None)

    def _post(self) -> None:
        consumer = self.consumer
        if consumer is None:
            self._board.write(self._status.report({}))
            return
        partitions, turn_seconds = 0, consumer.health().seconds_since_poll
        with contextlib.suppress(MessagingError):  # it was closed meanwhile
            partitions = len(consumer.assignment())
        self._board.write(self._status.report(self._ends(consumer), partitions=partitions, turn_seconds=turn_seconds))

    def _ends(self, consumer: KafkaConsumer) -> dict[TopicPartition, int]:
        try:
            behind = consumer.lag(LAG_SECONDS)
        except MessagingError:
            return {}
        positions = {partition: consumer.position(partition) for partition in behind}
        return {tp: at + behind[tp] for tp, at in positions.items() if at is not None}


class _StatusHook(Hook):
    def __init__(self, status: MemberStatus) -> None:
        self._status = status
        self._offsets: Mapping[TopicPartition, int] = {}

    def after_dead_letter(self, message: Message, error: Exception) -> None:
        self._status.dead_letter()

    def before_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._offsets = offsets

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        committed = (partition for partition, error in outcomes.items() if error is None)
        self._status.done({partition: self._offsets[partition] for partition in committed})


def decoder(group: GroupSettings) -> Decoder:
    """A function that decodes values of the group's topic to rows; several threads may call it at once."""
    if group.kind is Kind.METRICS:
        return _MetricDecoders(group.max_cached_series, group.max_dimensions)
    if group.kind is Kind.ALARM_HISTORY:
        return alarm.decode_all
    return partial(log.decode_all if group.kind is Kind.LOGS else event.decode_all, max_dimensions=group.max_dimensions)


class _MetricDecoders(threading.local):
    """One for each thread, because they cannot be shared; so one may have to compute what another has cached."""

    def __init__(self, max_series: int, max_dimensions: int) -> None:
        self._decoder = MetricDecoder(max_series, max_dimensions=max_dimensions)

    def __call__(self, values: Sequence[bytes | None]) -> Decoded[Measurement]:
        return self._decoder.decode_all(values)
