# SPDX-License-Identifier: Apache-2.0
"""Any transport with deadlines: what waits for a broker runs on the client's `ClientThread`.

Not poll, produce and flush, which are what clients are for: they run on their callers' threads, the first and the last
under watch. Producing waits for nobody; a message that is being handed over counts as unacknowledged, with its age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from monasca_common.kafka.errors import ClosedError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.base import ConsumerTransport, Fetched, Outcomes, ProducerTransport
from monasca_common.kafka.transport.client_thread import ClientThread
from monasca_common.kafka.transport.reservation import Reservation

# librdkafka takes none for a commit. It has been seen to give one up by itself after 144 s, with a silent coordinator.
COMMIT_SECONDS = 300.0
_BEGIN_SECONDS = 10.0  # it takes none for this either, and asks nobody but its own thread

Method = TypeVar("Method", bound=Callable[..., Any])


def _direct(method: Method) -> Method:
    """The client's own method on its caller's thread: it asks no broker, or keeps its time-out."""

    def call(bounded: Any, *arguments: Any) -> Any:
        return getattr(bounded._living(), method.__name__)(*arguments)

    return call  # type: ignore[return-value]


def _on_helper(method: Method, *, name: str = "", thread: str = "thread") -> Method:
    """The client's own method on its helper thread. The last argument is its time-out. ``name``: for error texts."""

    def call(bounded: Any, *arguments: Any) -> Any:
        # The client is looked up on the helper thread, so that nothing but the call itself refers to it.
        def run(left: float) -> Any:
            return getattr(bounded._living(), method.__name__)(*arguments[:-1], left)

        return getattr(bounded, thread).call(name or method.__name__, run, arguments[-1])

    return call  # type: ignore[return-value]


class _NoClient(Exception):
    """The client was poisoned or closed. Only this class raises it: what a signal handler raises is no refusal."""


class BoundedProducer(ProducerTransport):
    """``on_error`` hears, from within `poll` or `flush`, that the client was poisoned; everything else is the
    client's own. A poisoned one has nothing in flight, refuses messages and raises its `FatalError`."""

    def __init__(self, client: ProducerTransport, on_error: Callable[[TransportError], None]) -> None:
        self.driver = client.driver
        self.refusals = (*client.refusals, _NoClient)
        self.new_reservation = client.new_reservation
        self.send_is_atomic = client.send_is_atomic
        self.clock = client.clock
        self._client: ProducerTransport | None = client
        self._on_error = on_error
        self._reported = False
        self.thread = ClientThread(
            "kafka-producer-calls",
            client.clock,
            remedy="What became of its transaction is unknown: close the producer and open another with the same "
            "transactional_id, which ends the transaction either way, and read on from what is committed",
        )
        self.thread.on_poison = self._give_up
        # No Python frame between the producer and C.
        self.send = client.send  # type: ignore[method-assign]
        self.produce = client.produce  # type: ignore[method-assign]

    @property
    def poisoned(self) -> bool:
        return self.thread.failure is not None

    # Both are shadowed by the client's own while there is one.

    def send(self, topic: str, value: bytes, key: bytes | None, reservation: Reservation) -> bytes | None:
        return None

    def produce(self, topic: str, values: list[bytes], key: bytes | None, first: int, id_prefix: bytes | None) -> int:
        return 0

    def produce_record(self, *arguments: Any) -> None:
        client = self._client
        if client is None:
            raise _NoClient
        client.produce_record(*arguments)

    count = _direct(ProducerTransport.count)
    # Of another client, which waits for itself.
    max_message_bytes = _direct(ProducerTransport.max_message_bytes)
    topic_ids = _direct(ProducerTransport.topic_ids)

    init_transactions = _on_helper(ProducerTransport.init_transactions)
    send_offsets = _on_helper(ProducerTransport.send_offsets, name="send_offsets_to_transaction")
    commit_transaction = _on_helper(ProducerTransport.commit_transaction)
    abort_transaction = _on_helper(ProducerTransport.abort_transaction)

    def begin_transaction(self) -> None:
        self.thread.call("begin_transaction", lambda _: self._living().begin_transaction(), _BEGIN_SECONDS)

    def fault(self, error: Any) -> TransportError:
        client = self._client
        if client is not None:
            return client.fault(error)
        return self.thread.failure or TransportError("the producer was closed meanwhile", name="_DESTROY")

    def poll(self, timeout: float) -> Outcomes:
        client = self._client
        if client is None:
            return self._report_failure()
        with self.thread.watch("poll", timeout):
            return client.poll(timeout)

    def flush(self, timeout: float) -> Outcomes:
        client = self._client
        if client is None:
            return self._report_failure()
        with self.thread.watch("flush", timeout):
            return client.flush(timeout)

    def queued(self) -> int:
        client = self._client
        return 0 if client is None else client.queued()

    def purge(self) -> None:
        client = self._client
        if client is not None:
            client.purge()

    def close(self, timeout: float) -> None:
        """Have the client released behind its last call; waits no longer than ``timeout`` for that."""
        client = self._detach()
        if client is not None:
            release = client.close
            del client  # or it would be destroyed here in the end, and that waits for its threads
            self.thread.finish(lambda: release(timeout), timeout)

    def _living(self) -> ProducerTransport:
        client = self._client
        if client is None:
            self.thread.check()
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
        if self.thread.failure is not None and not self._reported:
            self._reported = True
            self._on_error(self.thread.failure)
        return Outcomes()


class BoundedConsumer(ConsumerTransport):
    """A poisoned client raises its `FatalError` from every call. ``thread`` is for those who wait less than a call's
    own time, as for a commit."""

    def __init__(self, client: ConsumerTransport) -> None:
        self.clock = client.clock
        self.driver = client.driver
        self._client: ConsumerTransport | None = client
        self.thread = ClientThread(
            "kafka-consumer-calls",
            client.clock,
            remedy="Close the consumer and open another: it reads on from what is committed",
        )
        self.thread.on_poison = self._give_up
        # Of another client, which keeps its times: these calls hold up no commit, and none of the others them.
        self.topic_thread = ClientThread("kafka-consumer-topics", client.clock, remedy="Start the process again")

    @property
    def poisoned(self) -> bool:
        return self.thread.failure is not None

    def limit(self, until: float) -> None:
        """See `ClientThread.limit`."""
        self.thread.limit(until)
        self.topic_thread.limit(until)

    subscribe = _direct(ConsumerTransport.subscribe)
    assign_owned = _direct(ConsumerTransport.assign_owned)
    assign = _direct(ConsumerTransport.assign)
    assignment = _direct(ConsumerTransport.assignment)
    pause = _direct(ConsumerTransport.pause)
    resume = _direct(ConsumerTransport.resume)
    seek = _direct(ConsumerTransport.seek)
    group_metadata = _direct(ConsumerTransport.group_metadata)

    committed = _on_helper(ConsumerTransport.committed)
    first_offsets = _on_helper(ConsumerTransport.first_offsets)
    end_offsets = _on_helper(ConsumerTransport.end_offsets)
    offsets_for_times = _on_helper(ConsumerTransport.offsets_for_times)
    partition_count = _on_helper(ConsumerTransport.partition_count)
    topic_ids = _on_helper(ConsumerTransport.topic_ids, thread="topic_thread")

    def poll(self, max_messages: int, timeout: float) -> Fetched:
        client = self._living()
        with self.thread.watch("poll", timeout):
            return client.poll(max_messages, timeout)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, TransportError | None]:
        return self.thread.call("commit", lambda _: self._living().commit(offsets), COMMIT_SECONDS)

    def watermarks(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        if timeout <= 0:
            return self._living().watermarks(partition, 0)
        return self.thread.call("watermarks", lambda left: self._living().watermarks(partition, left), timeout)

    def close(self) -> None:
        """Called by `ClientThread.finish`, as the last call."""
        try:
            self._living().close()
        finally:
            self._client = None
            self.topic_thread.finish(lambda: None, 0.0)

    def _living(self) -> ConsumerTransport:
        client = self._client
        if client is None:
            self.thread.check()
            raise ClosedError("the consumer's client is closed")
        return client

    def _give_up(self) -> Callable[[], None]:
        client, self._client = self._client, None
        return lambda: None if client is None else client.abandon()
