# SPDX-License-Identifier: Apache-2.0
"""Any transport with deadlines: what waits for a broker runs on the client's `ClientThread`.

Not poll, produce and flush, which are what clients are for: they run on their callers' threads, the first and the last
under watch. Producing waits for nobody; a message that is being handed over counts as unacknowledged, with its age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from monasca_common.kafka.errors import ClosedError, FatalError, MessagingError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.base import ConsumerTransport, Outcomes, ProducerTransport, RebalanceCallbacks
from monasca_common.kafka.transport.client_thread import ClientThread

# librdkafka takes none for a commit. It has been seen to give one up by itself after 144 s, with a silent coordinator.
COMMIT_SECONDS = 300.0
_BEGIN_SECONDS = 10.0  # it takes none for this either, and asks nobody but its own thread


class BoundedProducer(ProducerTransport):
    """``on_error`` hears, from within `poll` or `flush`, that the client was poisoned; everything else is the
    client's own. A poisoned one has nothing in flight, refuses messages and raises its `FatalError`."""

    def __init__(self, client: ProducerTransport, on_error: Callable[[TransportError], None]) -> None:
        self.driver = client.driver
        self.refusals = (*client.refusals, MessagingError)
        self.clock = client.clock
        self._client: ProducerTransport | None = client
        self._on_error = on_error
        self._reported = False
        self._thread = ClientThread(
            "kafka-producer-calls",
            client.clock,
            remedy="What became of its transaction is unknown: close the producer and open another with the same "
            "transactional_id, which ends the transaction either way, and read on from what is committed",
        )
        self._thread.on_poison = self._give_up
        # No Python frame between the producer and C.
        self.send = client.send  # type: ignore[method-assign]
        self.produce = client.produce  # type: ignore[method-assign]

    @property
    def poisoned(self) -> bool:
        return self._thread.failure is not None

    def oldest_call_seconds(self) -> float:
        return self._thread.oldest_seconds()

    # Both are shadowed by the client's own while there is one.

    def send(self, *arguments: Any) -> bytes | None:
        return self._living().send(*arguments)

    def produce(self, *arguments: Any) -> int:
        return self._living().produce(*arguments)

    def produce_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]],
        sequence: int,
    ) -> None:
        self._living().produce_record(topic, value, key, partition, timestamp_ms, headers, sequence)

    def fault(self, error: Any) -> TransportError:
        if isinstance(error, TransportError):
            return error
        client = self._client
        return FatalError(str(error), fatal=True) if client is None else client.fault(error)

    def poll(self, timeout: float) -> Outcomes:
        client = self._client
        if client is None:
            return self._report_failure()
        with self._thread.watch("poll", timeout):
            return client.poll(timeout)

    def flush(self, timeout: float) -> Outcomes:
        client = self._client
        if client is None:
            return self._report_failure()
        with self._thread.watch("flush", timeout):
            return client.flush(timeout)

    def queued(self) -> int:
        client = self._client
        return 0 if client is None else client.queued()

    def count(self, bucket_seconds: int) -> None:
        self._living().count(bucket_seconds)

    def purge(self) -> None:
        client = self._client
        if client is not None:
            client.purge()

    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        return self._living().max_message_bytes(topics, timeout)  # of another client, which waits for itself

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        return self._living().topic_ids(topics, timeout)

    # The client is looked up on the helper thread, so that nothing but the call itself refers to it.

    def init_transactions(self, timeout: float) -> None:
        self._thread.call("init_transactions", lambda left: self._living().init_transactions(left), timeout)

    def begin_transaction(self) -> None:
        self._thread.call("begin_transaction", lambda _: self._living().begin_transaction(), _BEGIN_SECONDS)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_metadata: Any, timeout: float) -> None:
        self._thread.call(
            "send_offsets_to_transaction",
            lambda left: self._living().send_offsets(offsets, group_metadata, left),
            timeout,
        )

    def commit_transaction(self, timeout: float) -> None:
        self._thread.call("commit_transaction", lambda left: self._living().commit_transaction(left), timeout)

    def abort_transaction(self, timeout: float) -> None:
        self._thread.call("abort_transaction", lambda left: self._living().abort_transaction(left), timeout)

    def close(self, timeout: float) -> None:
        """Have the client released behind its last call; waits no longer than ``timeout`` for that."""
        client = self._detach()
        if client is not None:
            release = client.close
            del client  # or it would be destroyed here in the end, and that waits for its threads
            self._thread.finish(lambda: release(timeout), timeout)

    def _living(self) -> ProducerTransport:
        client = self._client
        if client is None:
            self._thread.check()
            raise TransportError("the producer was closed meanwhile", name="_DESTROY")
        return client

    def _give_up(self) -> Callable[[], None]:
        client = self._detach()
        return lambda: None if client is None else client.close(0)

    def _detach(self) -> ProducerTransport | None:
        client, self._client = self._client, None
        if client is not None:
            del self.send, self.produce
        return client

    def _report_failure(self) -> Outcomes:
        if self._thread.failure is not None and not self._reported:
            self._reported = True
            self._on_error(self._thread.failure)
        return Outcomes()


class BoundedConsumer(ConsumerTransport):
    """A poisoned client raises its `FatalError` from every call. ``thread`` is for those who wait less than a call's
    own time, as for a commit."""

    def __init__(self, client: ConsumerTransport) -> None:
        self.clock = client.clock
        self.message_type = client.message_type
        self._client: ConsumerTransport | None = client
        self.thread = ClientThread(
            "kafka-consumer-calls",
            client.clock,
            remedy="Close the consumer and open another: it reads on from what is committed",
        )
        self.thread.on_poison = self._give_up
        # Of another client, which keeps its times: these calls hold up no commit, and none of the others them.
        self._topic_calls = ClientThread("kafka-consumer-topics", client.clock, remedy="Start the process again")

    @property
    def poisoned(self) -> bool:
        return self.thread.failure is not None

    def limit(self, until: float) -> None:
        """See `ClientThread.limit`."""
        self.thread.limit(until)
        self._topic_calls.limit(until)

    @property
    def on_error(self) -> Callable[[TransportError], None] | None:
        return self._living().on_error

    @on_error.setter
    def on_error(self, heard: Callable[[TransportError], None] | None) -> None:
        self._living().on_error = heard

    def subscribe(self, topics: Sequence[str], callbacks: RebalanceCallbacks) -> None:
        self._living().subscribe(topics, callbacks)

    def assign_owned(self, positions: Mapping[TopicPartition, int]) -> None:
        self._living().assign_owned(positions)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._living().assign(positions)

    def assignment(self) -> set[TopicPartition]:
        return self._living().assignment()

    def poll(self, max_messages: int, timeout: float) -> Sequence[Any]:
        client = self._living()
        with self.thread.watch("poll", timeout):
            return client.poll(max_messages, timeout)

    def fault(self, error: Any) -> TransportError:
        return self._living().fault(error)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._living().pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._living().resume(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._living().seek(partition, offset)

    def position(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        return self._living().position(partitions)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, TransportError | None]:
        return self.thread.call("commit", lambda _: self._living().commit(offsets), COMMIT_SECONDS)

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]:
        return self.thread.call("committed", lambda left: self._living().committed(partitions, left), timeout)

    def watermarks(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        if timeout <= 0:
            return self._living().watermarks(partition, 0)
        return self.thread.call("watermarks", lambda left: self._living().watermarks(partition, left), timeout)

    def first_offsets(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        return self.thread.call("first_offsets", lambda left: self._living().first_offsets(partitions, left), timeout)

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        return self.thread.call("end_offsets", lambda left: self._living().end_offsets(partitions, left), timeout)

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int]:
        return self.thread.call(
            "offsets_for_times", lambda left: self._living().offsets_for_times(times_ms, left), timeout
        )

    def partition_count(self, topic: str, timeout: float) -> int:
        return self.thread.call("partition_count", lambda left: self._living().partition_count(topic, left), timeout)

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        return self._topic_calls.call("topic_ids", lambda left: self._living().topic_ids(topics, left), timeout)

    def group_metadata(self) -> Any:
        return self._living().group_metadata()

    def close(self) -> None:
        """Called by `ClientThread.finish`, as the last call."""
        self._living().close()
        self._client = None
        self._topic_calls.finish(lambda: None, 0.0)

    def _living(self) -> ConsumerTransport:
        client = self._client
        if client is None:
            self.thread.check()
            raise ClosedError("the consumer's client is closed")
        return client

    def _give_up(self) -> Callable[[], None]:
        client, self._client = self._client, None
        return lambda: None if client is None else client.abandon()
