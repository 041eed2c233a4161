# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Mapping, Sequence

# 0: a log line, 1: an error, 2: a fatal error, 3: an undelivered message, 4: an event of a partition, 5: a count; code
# of the error, syslog level, or counted messages; text, or the topic of a count; topic; partition; sequence of an
# undelivered message, offset of an event, or start of a count's bucket in milliseconds; value; and key
Notice = tuple[int, int, str, str | None, int, int, bytes | None, bytes | None]
# delivered messages, each with four 64-bit numbers: sequence, offset, cumulative size, partition; counts; undelivered
# messages; and other notices
Outcomes = tuple[bytes, list[Notice], list[Notice], list[Notice]]

INTERFACE: int

class Error(Exception): ...

class Producer:
    def __init__(self, options: Mapping[str, str], /) -> None: ...
    # Returns the id, or None if the message was not accepted. `reservation` is a `NativeReservation`.
    def send(self, topic: str, value: bytes, key: bytes | None, reservation: object, /) -> bytes | None: ...
    # Returns the number of messages that were accepted, and raises the error of the first message. `ids`: see
    # `ProducerTransport.produce`. Headers need one value and no ids.
    def produce(
        self,
        topic: str,
        values: Sequence[bytes | None],  # a list
        key: bytes | None,
        first: int,
        ids: bytes | list[bytes] | None,
        partition: int = ...,
        timestamp_ms: int = ...,
        headers: Sequence[tuple[str, bytes | None]] = ...,
        /,
    ) -> int: ...
    # Waits last at most 100 ms, so that Python can handle signals. `poll` waits for the first outcome, and `flush`
    # waits until nothing is queued.
    def poll(self, timeout_ms: int, /) -> Outcomes | None: ...
    def flush(self, timeout_ms: int, /) -> Outcomes | None: ...
    queued: int  # messages that are queued, or whose outcomes were not returned
    bucket_ms: int  # the length of the buckets of counts; 0: no counts
    def purge(self) -> None: ...
    def add_brokers(self, servers: str, /) -> None: ...
    # Ends waits, and refuses later calls; the last reference to the client destroys it.
    def close(self) -> None: ...

# topic, partition, offset, code of an error or 0
Partition = tuple[str, int, int, int]

class Rows:
    """Messages of one partition. Each column is built on first use; the last one releases the messages, which until
    then keep the client and the memory of their fetch responses alive."""

    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int | None]
    headers: list[tuple[tuple[str, bytes | None], ...]]
    # Returns the value of each message's last header with this name, or None if the messages are released.
    def header(self, name: str, /) -> list[bytes | None] | None: ...
    def __len__(self) -> int: ...

class Consumer:
    """``on_rebalance`` is called with "assign", "revoke" or "lost", and the partitions. It returns whether it has
    assigned them; otherwise, the client assigns or unassigns them."""

    def __init__(self, options: Mapping[str, str], on_rebalance: Callable[[str, list[Partition]], bool], /) -> None: ...
    # Waits for at most 100 ms.
    def poll(self, most: int, timeout_ms: int, /) -> tuple[list[tuple[str, int, Rows]], list[Notice]] | None: ...
    def group_metadata(self, partitions: Sequence[tuple[str, int, int]], /) -> bytes: ...
    def add_brokers(self, servers: str, /) -> None: ...
    def close(self) -> None: ...  # leaves the group
    def abandon(self) -> None: ...  # without leaving the group; otherwise like `Producer.close`
    # Calls that take and return partitions; those that ask a broker have a time-out in milliseconds.
    def __getattr__(self, name: str) -> Callable[[Sequence[tuple[str, int, int]], int], list[Partition]]: ...
