# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Mapping, Sequence

# sequence, code, text, value, key
Undelivered = tuple[int, int, str, bytes | None, bytes | None]
# topic, beginning of the bucket in milliseconds, messages, bytes, delay_ms, max_delay_ms
Count = tuple[str, int, int, int, int, int]
# code of an error or syslog level of a log line; text; 0: a log line, 1: an error, 2: a fatal error
Notice = tuple[int, str, int]
# the delivered, of which each has four numbers of 64 bits: sequence, offset, added up size, partition
Outcomes = tuple[bytes, list[Undelivered], list[Count], list[Notice]]

class Error(Exception): ...

class Reservation:
    """As `monasca_common.kafka.transport.reservation.Reservation`; `Producer.send` takes from it with the GIL held."""

    next: int
    end: int
    left: int
    def __init__(
        self, first: int, end: int, left: int, largest: int, overhead: int, id_prefix: bytes | None, /
    ) -> None: ...
    def close(self) -> None: ...

class Producer:
    def __init__(self, options: Mapping[str, str], /) -> None: ...
    def send(self, topic: str, value: bytes, key: bytes | None, reservation: Reservation, /) -> bytes | None: ...
    def produce(
        self, topic: str, values: list[bytes], key: bytes | None, first: int, id_prefix: bytes | None, /
    ) -> int: ...
    def produce_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]],
        sequence: int,
        /,
    ) -> None: ...
    def poll(self, timeout_ms: int, /) -> Outcomes | None: ...
    def flush(self, timeout_ms: int, /) -> Outcomes | None: ...
    def queued(self) -> int: ...
    def count(self, bucket_seconds: int, /) -> None: ...
    def purge(self) -> None: ...
    def close(self) -> None: ...

# topic, partition, offset, code of an error or 0
Partition = tuple[str, int, int, int]
# code of an error, text, topic, partition, offset
Event = tuple[int, str, str | None, int, int]

class Rows:
    """Messages of one partition; each column is built when it is first asked for."""

    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int | None]
    headers: list[tuple[tuple[str, bytes | None], ...]]
    def __len__(self) -> int: ...

class Consumer:
    """``on_rebalance`` is called with "assign", "revoke" or "lost", and the partitions."""

    def __init__(self, options: Mapping[str, str], on_rebalance: Callable[[str, list[Partition]], None], /) -> None: ...
    def poll(
        self, most: int, timeout_ms: int, /
    ) -> tuple[list[tuple[str, int, Rows]], list[Event], list[Notice]] | None: ...
    def watermarks(self, topic: str, partition: int, timeout_ms: int, /) -> tuple[int, int]: ...
    def group_metadata(self) -> bytes: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    # Those that take and return partitions; the time-out in milliseconds is of the calls that ask a broker.
    def __getattr__(self, name: str) -> Callable[[Sequence[tuple[str, int, int]], int], list[Partition]]: ...
