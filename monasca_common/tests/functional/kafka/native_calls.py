# SPDX-License-Identifier: Apache-2.0
"""Random calls of the native clients, in random order and from several threads.

Checks for crashes, lost or duplicated outcomes, columns of unequal length, and growing memory::

    PYTHONMALLOC=malloc python -m monasca_common.tests.functional.kafka.native_calls --minutes 10 [--seed N]
"""

import argparse
import ctypes
import faulthandler
import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from monasca_common.kafka.transport.native._librdkafka import Consumer, Error, Producer, Rows
from monasca_common.kafka.transport.native.producer import NativeReservation

Partition = tuple[str, int, int, int]

THREADS = 3
CLIENTS = 3
MOST_GROWTH_BYTES = 16 * 1024 * 1024
HANG_SECONDS = 45.0
MOST_HANGS = 2  # librdkafka sometimes does not end the destruction of a consumer (its issues 4674 and 5434)
REFUSALS = (Error, BufferError, TypeError, ValueError, OverflowError, RuntimeError)
ROUNDS = 5
LATEST_SECONDS = 180.0 + 2 * ROUNDS * HANG_SECONDS  # after the last call: if the process hangs, this shows where
# In a separate process, because the broker keeps all written data in memory.
BROKER = """
import sys
from monasca_common.tests.mock_broker import MockBroker
broker = MockBroker()
print(broker.bootstrap_servers, flush=True)
sys.stdin.read()
"""
WRONG: tuple[Any, ...] = (None, 1, "text", b"bytes", (), [], -1, 2**70, "\0", "t" * 600)


TOPICS = ("a", "b", "c")
STRATEGIES = {"g": "range", "h": "cooperative-sticky"}  # the broker aborts if members of a group have different values


class Tracked:
    """A producer with the sequences that it accepted and the sequences that it reported."""

    def __init__(self, servers: str, random_numbers: random.Random) -> None:
        options = {"enable.idempotence": "true", "linger.ms": "5", "log_level": "0"}
        options["bootstrap.servers"] = servers if random_numbers.random() < 0.8 else "127.0.0.1:1"
        options["queue.buffering.max.messages"] = random_numbers.choice(("100", "2000"))
        self.client = Producer(options)
        self.taken = 0
        self.reported: Counter[int] = Counter()
        self._next = 0
        self._lock = threading.Lock()

    def reserve(self, count: int) -> int:
        with self._lock:
            first, self._next = self._next, self._next + count
            return first

    def took(self, count: int) -> None:
        with self._lock:
            self.taken += count

    def collect(self, outcomes: tuple[Any, ...] | None) -> None:
        if not outcomes:
            return
        messages, _, undelivered, _ = outcomes
        delivered = memoryview(messages).cast("q")[::4].tolist()
        assert delivered == sorted(delivered), delivered
        with self._lock:
            self.reported.update(delivered)
            self.reported.update(sequence for *_, sequence, _, _ in undelivered)

    def end(self) -> None:
        """Purge the remaining messages; every message that the client accepted must have one outcome."""
        deadline = time.monotonic() + 30
        while self.client.queued and time.monotonic() < deadline:
            self.client.purge()
            self.collect(self.client.flush(99))
        self.client.close()
        assert self.reported.total() == len(self.reported) == self.taken, (self.reported.total(), self.taken)


class Reading:
    """A consumer, with some of its results."""

    def __init__(self, servers: str, numbers: random.Random) -> None:
        self.has_broker = numbers.random() < 0.8
        itself, group = weakref.ref(self), numbers.choice(tuple(STRATEGIES))

        def on_rebalance(kind: str, partitions: list[Partition]) -> bool:
            reading = itself()
            return reading is not None and reading.rebalance(kind, partitions)

        self.client = Consumer(
            {
                "bootstrap.servers": servers if self.has_broker else "127.0.0.1:1",
                "group.id": group,
                "enable.partition.eof": "true",
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": STRATEGIES[group],
                "session.timeout.ms": "6000",
                "log_level": "0",
            },
            on_rebalance,
        )
        self.kept: list[Rows] = []
        self._numbers = numbers

    def rebalance(self, kind: str, partitions: list[Partition]) -> bool:
        chance = self._numbers.random()
        if chance < 0.1:
            raise ValueError("for a test")
        if chance < 0.5:
            name = {"assign": "incremental_assign"}.get(kind, "incremental_unassign") if chance < 0.3 else "assign"
            getattr(self.client, name)([(topic, number, -2) for topic, number, *_ in partitions], 0)
        return kind == "assign" and 0.3 < chance < 0.5

    def end(self) -> None:
        self.client.close()
        for rows in self.kept:
            check(rows)


def check(rows: Rows) -> None:
    named = rows.header("h")
    columns = rows.offsets, rows.keys, rows.values, rows.timestamps, rows.headers
    assert {len(column) for column in columns} == {len(rows)}, columns
    assert named in (None, [dict(headers).get("h") for headers in rows.headers]), named
    assert rows.offsets == sorted(rows.offsets), rows.offsets


def read(reading: Reading, numbers: random.Random) -> None:
    client, kind = reading.client, numbers.randrange(16)
    partitions = [(numbers.choice(TOPICS), numbers.randrange(5), numbers.choice((-2, -1, 0, 7))) for _ in range(3)]
    if kind < 7:
        parts, *_ = client.poll(numbers.choice((1, 10, 500)), numbers.choice((0, 1, 20))) or ([],)
        reading.kept += [rows for _, _, rows in parts]
        if numbers.random() < 0.5:
            reading.kept = [rows for rows in list(reading.kept) if numbers.random() < 0.8][-200:]
        for rows in list(reading.kept):
            if numbers.random() < 0.1:
                check(rows)
    elif kind == 7 and numbers.random() < 0.1:
        numbers.choice((client.subscribe, client.assign, client.unsubscribe))(partitions, 0)
    elif kind < 10:
        numbers.choice((client.pause, client.resume, client.position, client.assignment))(partitions, 0)
    elif kind < 12:
        numbers.choice((client.seek, client.committed, client.offsets_for_times))(partitions, 5)
    elif kind == 12 and reading.has_broker:
        client.commit([(topic, number, 1) for topic, number, _ in partitions], 0)
    elif kind == 13:
        client.fetched_ends(partitions, 0)
        client.group_metadata(())
    elif kind == 14:
        wrong: list[Any] = [numbers.choice(WRONG) for _ in range(numbers.choice((0, 1, 2, 3)))]
        numbers.choice((client.poll, client.assign, client.seek, client.group_metadata, Consumer))(*wrong)


def call(tracked: Tracked, numbers: random.Random) -> None:
    client, kind = tracked.client, numbers.randrange(12)
    topic, key = numbers.choice(TOPICS), numbers.choice((None, b"", b"key"))
    value, prefix = numbers.randbytes(numbers.randrange(300)), numbers.choice((None, b"", b"0123456789ab"))
    if kind < 3:
        count = numbers.choice((0, 1, 20))
        first = tracked.reserve(count)
        room = NativeReservation(first, first + count, 2000, 200, 7, prefix)
        for _ in range(count):
            client.send(topic, value, key, room)
        tracked.took(room.next - first)
    elif kind < 5:
        count = numbers.choice((0, 1, 10, 500))
        ids = numbers.choice((prefix, [numbers.randbytes(numbers.randrange(40)) for _ in range(count)]))
        tracked.took(client.produce(topic, [value] * count, key, tracked.reserve(count), ids))
    elif kind == 5:
        headers = [(numbers.choice(("", "h")), numbers.choice((None, b"", value))) for _ in range(numbers.randrange(4))]
        partition = numbers.choice((-1, 0, 3, 77))
        tracked.took(client.produce(topic, [value], key, tracked.reserve(1), None, partition, 0, headers))
    elif kind < 8:
        serve = numbers.choice((client.poll, client.flush))
        tracked.collect(serve(numbers.choice((0, 1, 5, 120))))
    elif kind == 8:
        assert client.queued >= 0
    elif kind == 9 and numbers.random() < 0.1:
        numbers.choice((client.purge, lambda: setattr(client, "bucket_ms", 60)))()
    else:
        wrong: list[Any] = [numbers.choice(WRONG) for _ in range(numbers.choice((0, 5, 5, 8)))]
        refusing: list[Any] = [client.send, client.produce, client.poll, client.flush]
        numbers.choice([*refusing, Producer, NativeReservation])(*wrong)


def work(
    producers: list[Tracked], consumers: list[Reading], servers: str, numbers: random.Random, until: float
) -> None:
    while time.monotonic() < until:
        slot = numbers.randrange(CLIENTS)
        try:
            if numbers.random() < 0.7:
                call(producers[slot], numbers)
            else:
                read(consumers[slot], numbers)
        except REFUSALS:
            continue
        # Other threads can be using a client that is closed. If no thread closes it, the last reference destroys it.
        if numbers.random() < 0.0005:
            producer, producers[slot] = producers[slot], Tracked(servers, numbers)
            if numbers.random() < 0.5:
                producer.client.close()
        if numbers.random() < 0.001:
            consumer, consumers[slot] = consumers[slot], Reading(servers, numbers)
            numbers.choice((consumer.client.close, consumer.client.abandon, lambda: None))()


def hanging(calls: Sequence[Callable[[], None]], until: float) -> int:
    """Run each call in a thread. Return how many of them have not ended `HANG_SECONDS` after ``until``."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + HANG_SECONDS - time.monotonic()))
    return sum(thread.is_alive() for thread in threads)


class Allocations(ctypes.Structure):
    """The result of glibc's mallinfo2."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (*"abcd", "mapped", *"ef", "allocated", *"gh"))


def allocated_bytes() -> int:
    """Return the allocated bytes of all threads; the resident size of the process also includes freed memory."""
    gc.collect()
    library = ctypes.CDLL(None)
    sanitized = getattr(library, "__sanitizer_get_current_allocated_bytes", None)  # mallinfo2 is then 0
    if sanitized is not None:
        sanitized.restype = ctypes.c_size_t
        return int(sanitized())
    library.mallinfo2.restype = Allocations
    allocations = library.mallinfo2()
    return int(allocations.allocated + allocations.mapped)  # in heaps, and in mappings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(arguments.minutes * 60 + LATEST_SECONDS, exit=True)
    sys.stdout.write(f"seed {arguments.seed}\n")
    with subprocess.Popen(
        [sys.executable, "-c", BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        try:
            run(broker.stdout.readline().strip(), random.Random(arguments.seed), arguments.minutes * 60)
        finally:
            broker.stdin.close()


def run(servers: str, numbers: random.Random, seconds: float) -> None:
    producers = [Tracked(servers, numbers) for _ in range(CLIENTS)]
    consumers = [Reading(servers, numbers) for _ in range(CLIENTS)]
    failures: list[str] = []

    def fail(thread: threading.ExceptHookArgs) -> None:
        failures.append(repr(thread.exc_value))
        threading.__excepthook__(thread)

    threading.excepthook = fail
    started, hangs = time.monotonic(), 0
    sizes = []
    for number in range(1, ROUNDS + 1):
        until = started + seconds * number / ROUNDS
        chances = [random.Random(numbers.random()) for _ in range(THREADS)]
        hangs += hanging([partial(work, producers, consumers, servers, chance, until) for chance in chances], until)
        hangs += hanging([*(each.end for each in producers), *(each.end for each in consumers)], time.monotonic())
        for slot in range(CLIENTS):
            producers[slot], consumers[slot] = Tracked(servers, numbers), Reading(servers, numbers)
        size = allocated_bytes()
        sys.stdout.write(f"round {number}: {size // 1024**2} MiB, {hangs} hanging threads\n")
        sys.stdout.flush()
        if not hangs:  # a client that hangs keeps its memory, and librdkafka's threads allocate more
            sizes.append(size)
    growth = sizes[-1] - sizes[0] if sizes else 0
    if failures or hangs > MOST_HANGS or growth > MOST_GROWTH_BYTES:
        sys.exit(f"failures: {failures}; hanging threads: {hangs}; allocated bytes: {sizes}")


if __name__ == "__main__":
    main()
