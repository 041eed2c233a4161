# SPDX-License-Identifier: Apache-2.0
"""Consuming through librdkafka, without confluent-kafka's object for each message."""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError

from monasca_common.kafka.errors import ClosedError
from monasca_common.kafka.message import COLUMNS, Columns, TopicPartition
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.kafka.transport.base import Fetched, PartitionEvent, RebalanceCallbacks
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.librdkafka_consumer import FINISH_MESSAGES, LibrdkafkaConsumer, PartitionAnswer
from monasca_common.kafka.transport.librdkafka_options import consumer_options
from monasca_common.kafka.transport.native import _librdkafka
from monasca_common.kafka.transport.native.client import PARTITION_EVENT, ClientEvents, milliseconds, open_client

LOG = logging.getLogger(__name__)

# Maximum number of polled parts whose messages keep the memory of their fetch responses. Beyond this number, the oldest
# are copied.
_MOST_KEPT = 64


class NativeConsumer(LibrdkafkaConsumer):
    driver = "native"

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings)
        self._notices = ClientEvents(LOG, self.clock, settings.connection)
        self._kept: deque[weakref.ref[NativeColumns]] = deque()
        itself = weakref.ref(self)  # the client must not keep this object, its owner, alive

        def on_rebalance(kind: str, partitions: list[_librdkafka.Partition]) -> bool:
            consumer = itself()
            if consumer is None:
                return False
            getattr(consumer, f"_on_{kind}")([TopicPartition(topic, number) for topic, number, *_ in partitions])
            return kind == "assign" and not consumer._closing

        self._client = open_client(
            "consumer_options",
            consumer_options(settings),
            lambda options: _librdkafka.Consumer(options, on_rebalance),
        )

    def subscribe(self, topics: Sequence[str], callbacks: RebalanceCallbacks) -> None:
        self._callbacks = callbacks
        self._ask("subscribe", {TopicPartition(topic, -1): OFFSET_INVALID for topic in topics})

    def poll(self, max_messages: int, timeout: float) -> Fetched:
        deadline = self.clock.monotonic() + timeout
        while True:
            with self._calling():
                parts, notices = self._client.poll(max_messages, milliseconds(timeout)) or ([], [])
                self._notices.reconnect(self._client, heard=bool(parts))
            self._notices.handle(notices, self.on_error)
            events = [notice for notice in notices if notice[0] == PARTITION_EVENT]
            timeout = deadline - self.clock.monotonic()
            if parts or events or timeout <= 0:
                fetched = [(TopicPartition(topic, number), NativeColumns(rows)) for topic, number, rows in parts]
                self._kept += [weakref.ref(columns) for _, columns in fetched]
                self._copy_kept(_MOST_KEPT)
                return Fetched(
                    fetched,
                    [
                        PartitionEvent(
                            translate(KafkaError(code, text)), topic, number, offset if offset >= 0 else None
                        )
                        for _, code, text, topic, number, offset, *_ in events
                    ],
                )

    def group_metadata(self) -> Any:
        with self._calling():
            return self._client.group_metadata([])

    def abandon(self) -> None:
        self._closing = True
        self._copy_kept()
        self._client.abandon()
        self._guard.unpin()

    def _ask(
        self, call: str, offsets: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, PartitionAnswer]:
        partitions = [(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        with self._calling():
            answers = getattr(self._client, call)(partitions, 0 if timeout is None else milliseconds(timeout))
        return {
            TopicPartition(topic, number): PartitionAnswer(offset, translate(KafkaError(code)) if code else None)
            for topic, number, offset, code in answers
        }

    def _poll_for_rebalances(self, timeout: float) -> None:
        try:
            with self._calling():
                self._client.poll(FINISH_MESSAGES, milliseconds(timeout))
        except RuntimeError:  # a signal handler closes the consumer during a poll, which must end first
            time.sleep(timeout)

    def _release(self) -> None:
        self._copy_kept()
        with self._calling():
            self._client.close()

    def _copy_kept(self, most: int = 0) -> None:
        """Copy all but the ``most`` newest parts, so that they no longer keep the client alive."""
        while len(self._kept) > most:
            columns = self._kept.popleft()()
            if columns is not None:
                columns.copy()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Translate the errors of a client call."""
        try:
            yield
        except _librdkafka.Error as error:
            if error.args[0] == KafkaError._DESTROY:
                raise ClosedError(f"the consumer's client is closed: {error.args[1]}") from None
            raise translate(KafkaError(*error.args)) from None
        except ValueError as error:  # raised for an invalid topic name
            raise translate(error) from error


class NativeColumns(Columns):
    """Columns that C builds."""

    __slots__ = ("_rows",)

    def __init__(self, rows: _librdkafka.Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> list[Any]:
        return getattr(self._rows, name)  # type: ignore[no-any-return]

    def header(self, name: str) -> list[bytes | None]:
        found = self._rows.header(name)
        return super().header(name) if found is None else found

    def copy(self) -> None:
        """Build all columns, which releases the client's messages."""
        for name in COLUMNS:
            self.column(name)
