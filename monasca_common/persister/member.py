# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group: its consumer, its writers, its loop, and another try when one of them fails."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.consumer import KafkaConsumer
from monasca_common.kafka.dead_letter import DeadLetters
from monasca_common.kafka.entry_points import entry_point
from monasca_common.kafka.errors import DeadLetterLimit, MessagingError
from monasca_common.kafka.hooks import Hook
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.kafka.plugins import CONSUMERS, PRODUCERS
from monasca_common.kafka.processor import Processor
from monasca_common.kafka.producer import KafkaProducer
from monasca_common.kafka.retry import RetryPolicy
from monasca_common.models import alarm, event, log
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.rows import Decoded, Measurement
from monasca_common.persister.account import Account, State, Status
from monasca_common.persister.board import Board
from monasca_common.persister.handler import Decoder, RowsHandler
from monasca_common.persister.settings import GroupSettings
from monasca_common.persister.starts import StoredStarts
from monasca_common.persister.writers import Writers
from monasca_common.storage.base import Capability, Kind, Storage
from monasca_common.storage.errors import StorageError

LOG = logging.getLogger(__name__)

# Of a database that is away: seldom enough not to be a load, often enough to go on within seconds of its return.
_RETRY = RetryPolicy(backoff_seconds=0.1, max_backoff_seconds=3.0)
# Of a member that failed; one that ran for so long starts again at the first.
RESTARTS = RetryPolicy(backoff_seconds=0.5, max_backoff_seconds=30.0, jitter=0.2)
HEALTHY_SECONDS = 60.0
_CLOSE_SECONDS = 1.0
_TELL_SECONDS = 1.0
_PROBE_SECONDS = 5.0
_PROBE_PATIENCE_SECONDS = 2.0


class Member:
    """Runs one consumer of ``group`` until `stop`, in the process (and after the fork) that makes it."""

    def __init__(
        self,
        group: GroupSettings,
        storage: Storage,
        dead_letters: DeadLetters,
        board: Board,
        status: Status,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._group = group
        self._storage = storage
        self._dead_letters = dead_letters
        self._board = board
        self._clock = clock or SystemClock()
        self._account = Account(status, self._clock)
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._processor: Processor | None = None
        self._consumer: KafkaConsumer | None = None

    def run(self) -> None:
        """Until `stop`: read and store; after a failure, again with a back-off. Raises nothing."""
        teller = threading.Thread(target=self._tell, name=f"{self._group.kind}-status", daemon=True)
        teller.start()
        failures = 0
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            try:
                self._serve()
            except Exception as error:
                failures = 1 if self._clock.monotonic() - began > HEALTHY_SECONDS else failures + 1
                self._failed(error, failures)
        self._account.enter(State.STOPPED)
        self._over.set()
        teller.join(_TELL_SECONDS)
        LOG.info("%s stopped: %s", self._account.name, self._account.status({}).counters)
        self._post()

    def stop(self) -> None:
        """Hand out nothing more, commit, leave the group; returns when that is done, in bounded time."""
        self._stopping.set()
        if self._processor is not None:
            self._processor.stop()

    def _failed(self, error: Exception, failures: int) -> None:
        final = isinstance(error, DeadLetterLimit)
        delay = None if final else RESTARTS.delay(failures, 0.0)
        then = "stays so until a restart" if delay is None else f"tries again in {delay:.1f} s"
        LOG.error("the consumer of [%s] failed and %s: %s", self._group.name, then, error, exc_info=_unexpected(error))
        self._account.enter(State.FAILED, str(error))
        self._stopping.wait(delay)
        if not self._stopping.is_set():
            self._account.restarted()

    def _serve(self) -> None:
        """One consumer, from its first poll to its close."""
        with contextlib.ExitStack() as stack:
            writers = Writers(self._storage)
            stack.callback(writers.close)
            starts = StoredStarts(writers, self._account)
            producer = stack.enter_context(_opened_producer(self._group))
            consumer = stack.enter_context(_opened_consumer(self._group, starts, self._storage))
            handler = RowsHandler(
                self._group.kind,
                consumer.settings.group_id,
                decoder(self._group.kind, self._group.max_cached_series),
                writers,
                starts,
                self._account,
            )
            processor = Processor(
                consumer,
                handler,
                producer=producer,
                retry=_RETRY,
                dead_letters=self._dead_letters,
                threads=self._group.threads,
                max_wait_seconds=consumer.settings.max_wait_time_seconds,
                hooks=[_Watcher(self._account)],
            )
            self._account.begin(lambda: processor.stop(0))
            self._processor, self._consumer = processor, consumer
            stack.callback(self._forget)
            if not self._stopping.is_set():
                processor.run()
        if self._account.failure is not None:
            raise self._account.failure

    def _forget(self) -> None:
        self._processor = self._consumer = None

    # What is told of it

    def _tell(self) -> None:
        probe_at = 0.0
        while not self._over.is_set():
            if self._clock.monotonic() >= probe_at:
                self._probe()
                probe_at = self._clock.monotonic() + _PROBE_SECONDS
            self._post()
            self._over.wait(_TELL_SECONDS)

    def _probe(self) -> None:
        """Ask the brokers for something: a consumer that hears nothing may have nothing to read, or no broker."""
        consumer = self._consumer
        if consumer is None:
            return
        try:
            consumer.partition_count(self._group.consumer.topics[0], _PROBE_PATIENCE_SECONDS)
        except MessagingError as error:
            self._account.kafka(error)
        else:
            self._account.kafka(None)

    def _post(self) -> None:
        self._board.write(self._account.status(self._ends()))

    def _ends(self) -> dict[TopicPartition, int]:
        consumer = self._consumer
        if consumer is None:
            return {}
        try:
            behind = consumer.lag(_TELL_SECONDS)
        except MessagingError:
            return {}
        positions = {partition: consumer.position(partition) for partition in behind}
        return {tp: at + behind[tp] for tp, at in positions.items() if at is not None}


class _Watcher(Hook):
    def __init__(self, account: Account) -> None:
        self._account = account
        self._offsets: Mapping[TopicPartition, int] = {}

    def after_dead_letter(self, message: Message, error: Exception) -> None:
        self._account.dead_letter()

    def before_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._offsets = offsets

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        committed = (partition for partition, error in outcomes.items() if error is None)
        self._account.done({partition: self._offsets[partition] for partition in committed})


def decoder(kind: Kind, max_series: int) -> Decoder:
    """What turns values of this kind's topic into rows, on several threads at once."""
    if kind is Kind.METRICS:
        return _MetricDecoders(max_series)
    if kind is Kind.ALARM_HISTORY:
        return alarm.decode_all
    return log.decode_all if kind is Kind.LOGS else event.decode_all


class _MetricDecoders(threading.local):
    """One for each thread, for they are not to be shared; what one remembers, another may have to find out."""

    def __init__(self, max_series: int) -> None:
        self._decoder = MetricDecoder(max_series)

    def __call__(self, values: Sequence[bytes | None]) -> Decoded[Measurement]:
        return self._decoder.decode_all(values)


@contextlib.contextmanager
def _opened_producer(group: GroupSettings) -> Iterator[KafkaProducer]:
    producer = entry_point(PRODUCERS, group.producer.connection.driver, option="driver")(group.producer)
    try:
        yield producer
    finally:
        producer.close(_CLOSE_SECONDS)


@contextlib.contextmanager
def _opened_consumer(group: GroupSettings, starts: StoredStarts, storage: Storage) -> Iterator[KafkaConsumer]:
    consumer = entry_point(CONSUMERS, group.consumer.connection.driver, option="driver")(group.consumer)
    # Without offsets in the database, Kafka's are all there is: at least once, and rows overwrite by key.
    if Capability.TRANSACTIONAL_OFFSETS in storage.capabilities:
        starts.attach(consumer)
    try:
        yield consumer
    finally:
        consumer.close(_CLOSE_SECONDS)


def _unexpected(error: Exception) -> bool:
    """Whether its text may not be enough to find the cause."""
    return not isinstance(error, MessagingError | StorageError)
