# SPDX-License-Identifier: Apache-2.0
"""Adds deadlines to any transport: calls that wait for a broker run on the client's `ClientThread`. Poll, produce and
flush, a client's main calls, run on their callers' threads; a watchdog reports a poll or flush that hangs. Producing
does not wait; a message in a produce call counts as unacknowledged, with its age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from monasca_common.kafka.errors import ClosedError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.base import ConsumerTransport, Fetched, Outcomes, ProducerTransport
from monasca_common.kafka.transport.client_thread import ClientThread
from monasca_common.kafka.transport.reservation import Reservation

# librdkafka has no time-out for a commit. One commit ended by itself after 144 s because the coordinator did not
# respond.
COMMIT_SECONDS = 300.0
_BEGIN_SECONDS = 10.0  # this call has no time-out either, but only waits for the client's own thread

Method = TypeVar("Method", bound=Callable[..., Any])


def _direct(method: Method) -> Method:
    """Call the client's method on its caller's thread, because it does not wait for a broker, or always keeps its
    time-out."""

    def call(bounded: Any, *arguments: Any) -> Any:
        return getattr(bounded._living(), method.__name__)(*arguments)

    return call  # type: ignore[return-value]


def _on_helper(method: Method, *, name: str = "", thread: str = "thread") -> Method:
    """Call the client's method on its helper thread. The last argument is the time-out. ``name``: the call's name in
    errors."""

    def call(bounded: Any, *arguments: Any) -> Any:
        # The helper thread reads the attribute, so that only the call itself refers to the client.
        def run(left: float) -> Any:
            return getattr(bounded._living(), method.__name__)(*arguments[:-1], left)

        return getattr(bounded, thread).call(name or method.__name__, run, arguments[-1])

    return call  # type: ignore[return-value]


class _NoClient(Exception):
    """The client was poisoned or closed; a separate class, because signal handlers raise other errors."""


class BoundedProducer(ProducerTransport):
    """``on_error`` also receives the error of a poisoned client, within `poll` or `flush`. Other methods are those of
    the client. A poisoned producer has nothing in flight, refuses messages and raises its `FatalError`."""

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
            remedy="The outcome of its transaction is unknown: close the producer and open another with the same "
            "transactional_id, which ends the transaction either way, and resume from the committed offsets",
        )
        self.thread.on_poison = self._give_up
        # The producer calls C without a Python frame in between.
        self.send = client.send  # type: ignore[method-assign]
        self.produce = client.produce  # type: ignore[method-assign]

    @property
    def poisoned(self) -> bool:
        return self.thread.failure is not None

    # The client's methods replace these two while there is a client.

    def send(self, topic: str, value: bytes, key: bytes | None, reservation: Reservation) -> bytes | None:
        return None

    def produce(
        self, topic: str, values: list[bytes], key: bytes | None, first: int, ids: bytes | list[bytes] | None
    ) -> int:
        return 0

    def produce_record(self, *arguments: Any) -> None:
        client = self._client
        if client is None:
            raise _NoClient
        client.produce_record(*arguments)

    count = _direct(ProducerTransport.count)
    # The `Admin`, a separate client, limits its own waits.
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
        return self.thread.failure or TransportError("the producer was closed in the meantime", name="_DESTROY")

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
        """Close the client after its last call; wait up to ``timeout`` seconds for the close."""
        client = self._detach()
        if client is not None:
            release = client.close
            del client  # otherwise the end of this method would destroy the client, which waits for its threads
            self.thread.finish(lambda: release(timeout), timeout)

    def _living(self) -> ProducerTransport:
        client = self._client
        if client is None:
            self.thread.check()
            raise TransportError("the producer was closed in the meantime", name="_DESTROY")
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
    """Every call of a poisoned client raises its `FatalError`. ``thread`` runs calls, so that a caller can stop waiting
    before a call's time-out."""

    def __init__(self, client: ConsumerTransport) -> None:
        self.clock = client.clock
        self.driver = client.driver
        self._client: ConsumerTransport | None = client
        self.thread = ClientThread(
            "kafka-consumer-calls",
            client.clock,
            remedy="Close the consumer and open another: it resumes from the committed offsets",
        )
        self.thread.on_poison = self._give_up
        # A separate client requests topic ids, on a separate thread, so that they and commits do not delay each other.
        self.topic_thread = ClientThread("kafka-consumer-topics", client.clock, remedy="Restart the process")

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
    fetched_ends = _direct(ConsumerTransport.fetched_ends)
    group_metadata = _direct(ConsumerTransport.group_metadata)

    committed = _on_helper(ConsumerTransport.committed)
    offsets_for_times = _on_helper(ConsumerTransport.offsets_for_times)
    partition_count = _on_helper(ConsumerTransport.partition_count)
    topic_ids = _on_helper(ConsumerTransport.topic_ids, thread="topic_thread")

    def poll(self, max_messages: int, timeout: float) -> Fetched:
        client = self._living()
        with self.thread.watch("poll", timeout):
            return client.poll(max_messages, timeout)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, TransportError | None]:
        return self.thread.call("commit", lambda _: self._living().commit(offsets), COMMIT_SECONDS)

    def close(self) -> None:
        """Close the client; `ClientThread.finish` runs this as the last call."""
        try:
            self._living().close()
        finally:
            self._client = None

    def _living(self) -> ConsumerTransport:
        client = self._client
        if client is None:
            self.thread.check()
            raise ClosedError("the consumer's client is closed")
        return client

    def _give_up(self) -> Callable[[], None]:
        client, self._client = self._client, None
        return lambda: None if client is None else client.abandon()
