# SPDX-License-Identifier: Apache-2.0
"""Administration of a cluster: topics and offsets. Each call waits for the brokers' response.

Only this module imports `confluent_kafka.admin`. Every error is a `TransportError`, or a `ConfigurationError` if
librdkafka refuses an option; all times are in seconds.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from monasca_common.kafka.errors import RetriableError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.librdkafka_options import make_client

T = TypeVar("T")

# librdkafka's largest request time-out: a response after librdkafka's time-out can abort the process (librdkafka#4605).
# Therefore, `Admin` times out first, and closes the client.
_CLIENT_SECONDS = 3600.0
_REASON_SECONDS = 1.0  # from the time-out of librdkafka or the broker to that of `Admin`, for the reason to arrive
_LOOK_AGAIN_SECONDS = 0.02
_OWN_ANSWER_SECONDS = 2.0
_MOST_DRAWS = 50
_GROUPS_AT_ONCE = 50
# The errors of groups that do not exist or are of another kind.
_WITHOUT_MEMBERS = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INCONSISTENT_GROUP_PROTOCOL)
_LATE_SECONDS = 0.5
_SETTLE_SECONDS = 2.0

# The client's errors for brokers that do not respond or are unreachable. The brokers' own errors have other names.
_UNANSWERED = ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE")

_MOVE_SECONDS = 0.2


def repeat_after_moves(ask: Callable[[float], T], timeout: float) -> T:
    """Return the result of ``ask(seconds left)``. For up to ``timeout`` seconds, repeat it after temporary errors of
    brokers, for example while a leader or coordinator moves. ``ask``: a request that changes nothing."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return ask(deadline - time.monotonic())
        except RetriableError as error:
            if error.name in _UNANSWERED or time.monotonic() + _MOVE_SECONDS >= deadline:
                raise
        time.sleep(_MOVE_SECONDS)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic. Item i of each tuple belongs to partition i and has broker ids, or ``None`` for a missing leader.
    ``topic_id`` changes when a topic is deleted and recreated.
    """

    name: str
    topic_id: str
    partitions: int
    leaders: tuple[int | None, ...]
    replicas: tuple[tuple[int, ...], ...]
    in_sync: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """``partitions``: the partitions that live members read. ``subscribes``: whether members share whole topics; other
    groups only store the offsets of partitions that their clients choose themselves. ``is_settled``: whether no
    rebalance is in progress."""

    partitions: frozenset[TopicPartition] = frozenset()
    subscribes: bool = False
    is_settled: bool = True

    def has(self, partition: TopicPartition) -> bool | None:
        """Return whether a live member reads the partition, or ``None`` if this is unknown during a rebalance."""
        return partition in self.partitions or (False if self.is_settled else None)


class Admin:
    """An admin client of the cluster that ``options`` (librdkafka's names) describe. The first call connects.

    Its connections and threads end with the last reference to it. Several threads may call it concurrently.

    After a request that times out or fails with another retriable error, the client is closed; the next call opens
    another, which also requests the current leaders and controller. Queries of offsets and groups are repeated within
    their time-out while a leader or coordinator moves.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._login = _Login()  # not `self`: a reference cycle would keep the client alive after its last use
        self._servers = options.get("bootstrap.servers", "")
        self._options = dict(options)
        # Connection failures are reported in the error of the affected call, not on standard error. A request about a
        # topic does not create the topic.
        own = {"allow.auto.create.topics": False, "error_cb": self._login.handle_error}
        self._client_options: dict[str, Any] = {"log_level": 2, **options, **own}
        self._lock = threading.Lock()
        self._opened: AdminClient | None = None
        self._opened_at = float("-inf")

    @property
    def _client(self) -> AdminClient:
        with self._lock:
            if self._opened is None:
                self._opened = make_client("bootstrap_servers", lambda: AdminClient(self._client_options))
                self._opened_at = time.monotonic()
            return self._opened

    def _close_client(self, asked: float) -> None:
        """Close the client of a request that was sent at this time, unless it is already closed. The close runs on a
        thread, because it waits for the client's threads, one of which may be resolving a name."""
        with self._lock:
            if self._opened_at > asked:
                return
            last_reference, self._opened = [self._opened], None
        threading.Thread(target=last_reference.clear, name="kafka-admin-close", daemon=True).start()

    def wait_for_brokers(self, count: int, timeout: float) -> None:
        """Wait until ``count`` brokers are known; raise the last `TransportError` at the time-out."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                known = len(self._metadata(timeout=0.5).brokers)
                if known >= count:
                    return
                raise TransportError(f"{known} of {count} brokers are available after {timeout} s")
            except TransportError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.02)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        validate_only: bool = False,
    ) -> None:
        """Create one topic, like `create_topics`."""
        self.create_topics(
            {name: partitions},
            replication_factor=replication_factor,
            configs={name: config or {}},
            timeout=timeout,
            validate_only=validate_only,
        )

    def create_topics(
        self,
        partitions: Mapping[str, int],
        *,
        replication_factor: int = 1,
        configs: Mapping[str, Mapping[str, str]],
        timeout: float = 30.0,
        validate_only: bool = False,
    ) -> None:
        """Create topics with one request, and wait until the leader of every partition serves them. Raises an error if
        a topic already exists; the other topics may then exist too. ``partitions``: the number of partitions by topic.
        ``replication_factor``: -1 for the brokers' default. ``validate_only``: raise the error of the brokers, if any,
        but create nothing.

        A controller responds before the brokers know the topic. Until they do, a leader can still accept messages for
        the former topic of the same name, acknowledge them, and delete them with its log.
        """
        deadline = time.monotonic() + timeout
        topics = [
            NewTopic(name, count, replication_factor, config=dict(configs[name])) for name, count in partitions.items()
        ]
        create = partial(self._client.create_topics, topics, operation_timeout=timeout)
        if validate_only:
            self._all(create(validate_only=True), timeout + _REASON_SECONDS)
            return
        observer = Admin(self._options)  # another request would change the metadata that `_topic_ids_at` needs
        earlier = observer._ids_by_broker(partitions, self.broker_ids(timeout))
        self._all(create(), timeout + _REASON_SECONDS)
        left = dict(partitions)
        while left := observer._unserved(left, earlier):
            if time.monotonic() >= deadline:
                raise RetriableError(
                    f"topic {min(left)!r} was created, but not every leader serves it after {timeout} s"
                )
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _unserved(self, partitions: Mapping[str, int], earlier: Mapping[int, Mapping[str, str]]) -> dict[str, int]:
        """Return topics in which a partition has no leader, or whose leaders do not report the same new id."""
        try:
            answer = self._metadata(timeout=1.0)
        except TransportError:
            return dict(partitions)
        leaders = {
            name: {partition.leader for partition in answer.topics[name].partitions.values()}
            for name, count in partitions.items()
            if name in answer.topics and len(answer.topics[name].partitions) == count
        }
        led = {name: numbers for name, numbers in leaders.items() if numbers <= answer.brokers.keys()}
        ids = self._ids_by_broker(led, set().union(*led.values()))
        served = {
            name
            for name, numbers in led.items()
            if len(reported := {ids[number].get(name) for number in numbers}) == 1
            and reported.isdisjoint({None, *(known.get(name) for known in earlier.values())})
        }
        return {name: count for name, count in partitions.items() if name not in served}

    def _ids_by_broker(self, topics: Iterable[str], brokers: Iterable[int]) -> dict[int, dict[str, str]]:
        return {number: self._topic_ids_at(topics, number) for number in sorted(brokers)}

    def _topic_ids_at(self, topics: Iterable[str], broker: int) -> dict[str, str]:
        """Return the topics' ids at this broker, or no ids if there is no response. The client sends the request to the
        controller in its latest metadata, which under KRaft is a random broker, so request metadata until it names this
        broker."""
        with contextlib.suppress(TransportError):
            for _ in range(_MOST_DRAWS):
                if self._metadata(timeout=_OWN_ANSWER_SECONDS).controller_id == broker:
                    return self.topic_ids(topics, _OWN_ANSWER_SECONDS)
        return {}

    def delete_topic(self, name: str, timeout: float = 30.0) -> None:
        """Delete a topic and wait until the brokers no longer report it."""
        deadline = time.monotonic() + timeout
        self._all(self._client.delete_topics([name], operation_timeout=timeout), timeout + _REASON_SECONDS)
        while name in self._metadata(timeout=timeout).topics and time.monotonic() < deadline:
            time.sleep(0.02)

    def describe_topic(self, name: str, timeout: float = 10.0) -> TopicDescription:
        """Describe an existing topic. Raises `TransportError` if it does not exist."""
        return self.describe_topics((name,), timeout)[name]

    def describe_topics(self, names: Iterable[str], timeout: float = 10.0) -> dict[str, TopicDescription]:
        """Describe existing topics. Raises `TransportError` if a topic does not exist."""
        wanted = TopicCollection(sorted(set(names)))
        answer = self._all(self._client.describe_topics(wanted, request_timeout=_CLIENT_SECONDS), timeout)
        return {name: _description(name, topic) for name, topic in answer.items()}

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        """Return the id of each existing topic; missing topics are omitted."""
        names = sorted(set(topics))
        if not names:
            return {}
        futures = self._client.describe_topics(TopicCollection(names), request_timeout=_CLIENT_SECONDS)
        found = self._all(futures, timeout, may_lack=(KafkaError.UNKNOWN_TOPIC_OR_PART,))
        return {name: str(topic.topic_id) for name, topic in found.items() if topic is not None}

    def partition_count(self, topic: str, timeout: float = 10.0) -> int:
        """Return the partition count of a topic, from metadata only. Raises `TransportError` if it does not exist."""
        known = self._metadata(topic=topic, timeout=timeout).topics[topic]
        if known.error is not None:
            raise translate(known.error)
        return len(known.partitions)

    def partition_counts(self, timeout: float = 10.0) -> dict[str, int]:
        """Return the partition count of each topic of the cluster that this principal may see."""
        return {topic: len(leaders) for topic, leaders in self.leaders(timeout).items()}

    def leaders(self, timeout: float = 10.0) -> dict[str, dict[int, int | None]]:
        """Return the leader of each partition (``None`` if it has none) of each topic that this principal may see."""
        topics = self._metadata(timeout=timeout).topics.values()
        return {
            topic.topic: {each.id: each.leader if each.leader >= 0 else None for each in topic.partitions.values()}
            for topic in topics
            if topic.error is None
        }

    def cluster_id(self, timeout: float = 10.0) -> str:
        """Return the id of the cluster: two addresses with the same id belong to the same cluster."""
        return str(self._metadata(timeout=timeout).cluster_id)

    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        """Return each topic's ``max.message.bytes``, the limit of a stored record batch, or the error."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        futures = self._client.describe_configs(resources, request_timeout=_CLIENT_SECONDS)
        return {
            resource.name: found if isinstance(found, TransportError) else int(found["max.message.bytes"].value)
            for resource, found in self._outcomes(futures, timeout)
        }

    def topic_configs(self, topics: Iterable[str], timeout: float = 10.0) -> dict[str, dict[str, str]]:
        """Return every setting of each topic, including the brokers' defaults."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(set(topics))]
        futures = self._client.describe_configs(resources, request_timeout=_CLIENT_SECONDS) if resources else {}
        return {
            resource.name: {name: str(entry.value) for name, entry in settings.items()}
            for resource, settings in self._all(futures, timeout).items()
        }

    def delete_records(self, before: Mapping[TopicPartition, int], timeout: float = 10.0) -> dict[TopicPartition, int]:
        """Delete the records below each offset. Return the first remaining offset of each partition."""
        wanted = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in before.items()]
        answer = self._all(self._client.delete_records(wanted, request_timeout=_CLIENT_SECONDS), timeout)
        return {TopicPartition(tp.topic, tp.partition): int(left.low_watermark) for tp, left in answer.items()}

    def broker_ids(self, timeout: float = 10.0) -> set[int]:
        """Return the ids of the available brokers."""
        return set(self._metadata(timeout=timeout).brokers)

    def first_offsets(self, partitions: Iterable[TopicPartition], timeout: float = 10.0) -> dict[TopicPartition, int]:
        """Return the offset of each partition's oldest record, or the next offset if there is no record."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()), timeout)  # type: ignore[no-untyped-call]

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 10.0, *, open_transactions: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the end of each log for readers of committed messages, which is before open transactions; with
        ``open_transactions``, the end including uncommitted messages."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        isolation = IsolationLevel.READ_UNCOMMITTED if open_transactions else IsolationLevel.READ_COMMITTED
        return self._offsets(dict.fromkeys(partitions, latest), timeout, isolation)

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout: float = 10.0
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record that is not older than the time, or ``None`` if all are older."""
        specifications = {partition: OffsetSpec.for_timestamp(time_ms) for partition, time_ms in times_ms.items()}
        found = self._offsets(specifications, timeout)
        return {partition: offset if offset >= 0 else None for partition, offset in found.items()}

    def groups(self, timeout: float = 10.0) -> set[str]:
        """Return the names of all consumer groups that this principal may see."""
        answer = self._result(self._client.list_consumer_groups(request_timeout=_CLIENT_SECONDS), timeout)
        if answer.errors:
            raise self._fault(answer.errors[0])
        return {group.group_id for group in answer.valid}

    def group_members(self, group: str, timeout: float = 10.0) -> list[tuple[str, str]]:
        """Return the client id and address of each live member of a consumer group; empty if the group is missing."""
        found = repeat_after_moves(partial(self._described, [group], (KafkaError.GROUP_ID_NOT_FOUND,)), timeout)[group]
        return [(member.client_id, member.host) for member in found.members] if found else []

    def assignments(self, groups: Iterable[str], timeout: float = 10.0) -> dict[str, GroupAssignment]:
        """Return the partitions that live members of each consumer group read. They are empty for a group without
        members, or of another kind, such as Kafka Connect workers. ``timeout``: see `offsets_of`."""
        assigned: dict[str, GroupAssignment] = {}
        for some in _portions(groups, _GROUPS_AT_ONCE):
            described = repeat_after_moves(partial(self._described, some, _WITHOUT_MEMBERS), timeout)
            for group, found in described.items():
                assigned[group] = GroupAssignment() if found is None else _assignment(found)
        return assigned

    def _described(self, groups: list[str], may_lack: Collection[int], timeout: float) -> dict[str, Any]:
        futures = self._client.describe_consumer_groups(groups, request_timeout=_CLIENT_SECONDS)
        return self._all(futures, timeout, may_lack=may_lack)

    def group_offsets(self, group: str, timeout: float = 10.0) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group: the next offset of each partition with a commit."""
        return self.offsets_of((group,), timeout)[group]

    def offsets_of(self, groups: Iterable[str], timeout: float = 10.0) -> dict[str, dict[TopicPartition, int]]:
        """Return the `group_offsets` of many groups, requested concurrently in chunks. ``timeout``: the
        time-out of a chunk; the first chunk without a response ends the call."""
        offsets: dict[str, dict[TopicPartition, int]] = {}
        for some in _portions(groups, _GROUPS_AT_ONCE):
            offsets |= repeat_after_moves(partial(self._offsets_of, some), timeout)
        return offsets

    def _offsets_of(self, groups: list[str], timeout: float) -> dict[str, dict[TopicPartition, int]]:
        self._check_coordinators(groups, timeout)
        futures: dict[str, concurrent.futures.Future[Any]] = {}
        for group in groups:  # the client accepts one group per call, and does not wait for the response
            asked = [ConsumerGroupTopicPartitions(group)]
            futures |= self._client.list_consumer_group_offsets(asked, request_timeout=_CLIENT_SECONDS)
        return {
            group: {
                TopicPartition(tp.topic, tp.partition): tp.offset
                for tp in found.topic_partitions or []
                if tp.offset >= 0
            }
            for group, found in self._all(futures, timeout).items()
        }

    def _check_coordinators(self, groups: list[str], timeout: float) -> None:
        """Raise the error of a coordinator that moved or is not ready. librdkafka crashes if it requests a group's
        offsets from such a broker (librdkafka#5040), but not if it requests the group's description. A broker that was
        frozen responds before it learns that its groups moved: after a late response, check again."""
        for _ in range(2):
            asked = time.monotonic()
            self._described(groups, _WITHOUT_MEMBERS, timeout)
            if time.monotonic() - asked < _LATE_SECONDS:
                return
            time.sleep(_SETTLE_SECONDS)

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int], timeout: float = 10.0) -> None:
        """Set the committed offsets of a group. Raises `TransportError` while the group has members."""
        self._check_coordinators([group], timeout)
        wanted = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        futures = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=_CLIENT_SECONDS
        )
        # For a group with members, the request succeeds, with an error for each partition.
        for partition in self._all(futures, timeout)[group].topic_partitions or []:
            if partition.error is not None:
                raise translate(partition.error)

    def _offsets(
        self,
        specifications: Mapping[TopicPartition, Any],
        timeout: float,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        if not specifications:
            return {}
        wanted = {ClientTopicPartition(tp.topic, tp.partition): what for tp, what in specifications.items()}

        def ask(seconds: float) -> dict[Any, Any]:
            futures = self._client.list_offsets(wanted, request_timeout=_CLIENT_SECONDS, isolation_level=isolation)
            return self._all(futures, seconds)

        answer = repeat_after_moves(ask, timeout)
        offsets = {TopicPartition(tp.topic, tp.partition): int(found.offset) for tp, found in answer.items()}
        # If a leader is down, the client returns neither a result nor an error.
        unknown = sorted(partition for partition, offset in offsets.items() if offset == OFFSET_INVALID)
        if unknown:
            self._close_client(time.monotonic())  # the client would continue to send requests to the former leader
            raise RetriableError(f"{unknown[0].topic}/{unknown[0].partition}: its leader did not report its offset")
        return offsets

    def _metadata(self, *, timeout: float, **arguments: Any) -> Any:
        """Request metadata on a separate thread, because Ctrl-C does not interrupt a client call."""
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def ask() -> None:
            try:
                answer.set_result(self._client.list_topics(timeout=timeout, **arguments))
            except BaseException as error:
                answer.set_exception(error.with_traceback(None))  # the traceback would keep this frame alive

        threading.Thread(target=ask, name="kafka-metadata", daemon=True).start()
        return self._answer(answer, timeout, timeout + _REASON_SECONDS)

    def _all(
        self, futures: Mapping[T, concurrent.futures.Future[Any]], timeout: float, *, may_lack: Collection[int] = ()
    ) -> dict[T, Any]:
        """Return the responses to the sent requests, with ``None`` for errors with these codes; raise the first other
        error."""
        found = {}
        for what, outcome in self._outcomes(futures, timeout):
            if isinstance(outcome, TransportError) and outcome.code not in may_lack:
                try:
                    raise outcome
                finally:
                    del outcome  # because its traceback would keep this frame alive
            found[what] = None if isinstance(outcome, TransportError) else outcome
        return found

    def _outcomes(self, futures: Mapping[T, concurrent.futures.Future[Any]], timeout: float) -> Iterator[tuple[T, Any]]:
        """Yield the response to each sent request, or its `TransportError`."""
        asked = time.monotonic()
        for what, future in futures.items():
            try:
                yield what, self._result(future, timeout, asked)
            except TransportError as error:
                yield what, error

    def _result(self, future: concurrent.futures.Future[Any], timeout: float, asked: float | None = None) -> Any:
        """Return the response to an admin request that was sent at ``asked`` (default: now)."""
        asked = time.monotonic() if asked is None else asked
        try:
            return self._answer(future, timeout, asked + timeout - time.monotonic())
        except RetriableError:
            self._close_client(asked)
            raise

    def _answer(self, future: concurrent.futures.Future[Any], timeout: float, left: float) -> Any:
        try:
            answer = future.result(left)
        except KafkaException as error:
            # The traceback refers to the callers' frames, and one of them refers to the future with this error.
            raise self._fault(error) from error.with_traceback(None)
        except concurrent.futures.TimeoutError as error:
            raise self._fault(KafkaError(KafkaError._TIMED_OUT, f"{timeout} s without a response")) from error
        self._client.poll(0)
        self._login.refusal = None  # the brokers respond now
        return answer

    def _fault(self, error: KafkaException | KafkaError) -> TransportError:
        """Convert an error; instead of a missing response, the refused login that the error callback has reported."""
        self._client.poll(0)
        fault = translate(error)
        if fault.name in _UNANSWERED and self._login.refusal is not None:
            fault = translate(self._login.refusal)
        if fault.name not in _UNANSWERED:
            return fault
        text = (
            f"{fault}: no response from {self._servers}: check that these brokers are up, and check bootstrap_servers "
            "and security_protocol"
        )
        return type(fault)(text, code=fault.code, name=fault.name, fatal=fault.fatal)


def _portions(items: Iterable[T], size: int) -> list[list[T]]:
    whole = list(items)
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def _assignment(group: Any) -> GroupAssignment:
    parts = [member.assignment.topic_partitions for member in group.members if member.assignment]
    return GroupAssignment(
        frozenset(TopicPartition(tp.topic, tp.partition) for part in parts for tp in part),
        subscribes=not group.is_simple_consumer_group,
        is_settled=group.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY),
    )


def _description(name: str, topic: Any) -> TopicDescription:
    partitions = sorted(topic.partitions, key=lambda partition: partition.id)
    return TopicDescription(
        name=name,
        topic_id=str(topic.topic_id),
        partitions=len(partitions),
        leaders=tuple(p.leader.id if p.leader is not None and p.leader.id >= 0 else None for p in partitions),
        replicas=tuple(tuple(node.id for node in p.replicas) for p in partitions),
        in_sync=tuple(tuple(node.id for node in p.isr) for p in partitions),
    )


class _Login:
    """Stores the client's reports of refused logins, because calls that need a login only time out."""

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None

    def handle_error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self.refusal = error
