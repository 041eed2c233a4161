# SPDX-License-Identifier: Apache-2.0
"""What is measured, and what is required of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    title: str
    module: str  # in benchmarks: its room and its name
    messages: int
    quick_messages: int
    threads: int = 1
    message_ids: bool = True
    bulk: int = 1  # messages in one HTTP request
    environment: str | None = None  # None: the one that runs the benchmark
    database: str = "postgresql"  # the driver, where rows are stored
    repeats: bool = False  # whether some of what is read is there twice

    def count(self, *, quick: bool) -> int:
        return self.quick_messages if quick else self.messages


@dataclass(frozen=True, slots=True)
class Section:
    """Cases whose repeats take turns. ``reads``: they read one backlog; ``stores``: each run has its own database;
    with both it reads and stores metrics; with neither each run writes its own topic."""

    name: str
    title: str
    cases: tuple[Case, ...]
    reads: bool = False
    stores: bool = False
    repeats: int = 5
    quick_repeats: int = 3

    def runs(self, *, quick: bool) -> int:
        return self.quick_repeats if quick else self.repeats

    def backlog(self, *, quick: bool) -> int:
        return max(case.count(quick=quick) for case in self.cases)


@dataclass(frozen=True, slots=True)
class Required:
    """What one figure of ``case`` must be. ``figure``: "rate" (times ``peer``'s, at least), "p99_ms" (above
    ``peer``'s, at most) or "peak_mb" (at most)."""

    case: str
    figure: str
    limit: float
    peer: str | None = None


_BACKLOG = (1_000_000, 250_000)
_SPARK = (2_000_000, 500_000)

SECTIONS = (
    Section(
        "producing",
        "Sending without waiting",
        (
            Case(
                "send-bare", "confluent-kafka, counting callback, no header", "messaging.send_bare", 2_000_000, 400_000
            ),
            Case("send", "send with message ids, and flush", "messaging.send_ours", 2_000_000, 400_000),
            Case("send-no-ids", "the same, ids off", "messaging.send_ours", 2_000_000, 400_000, message_ids=False),
            Case(
                "send-arroyo",
                "arroyo, futures in a window",
                "messaging.send_arroyo",
                200_000,
                60_000,
                environment="arroyo",
            ),
        ),
    ),
    Section(
        "publishing",
        "Bulks of 100, outcome known",
        (
            Case(
                "publish-old",
                "monasca-common 3.8, one thread",
                "messaging.publish_old",
                400_000,
                100_000,
                environment="old",
            ),
            Case(
                "publish-counting",
                "confluent-kafka, counting, one thread",
                "messaging.publish_counting",
                400_000,
                100_000,
            ),
            Case(
                "publish-bare",
                "confluent-kafka, ids and callbacks, one thread",
                "messaging.publish_bare",
                400_000,
                100_000,
            ),
            Case("publish", "publish, one thread", "messaging.publish_ours", 400_000, 100_000),
            Case(
                "publish-bare-8",
                "confluent-kafka, ids and callbacks, 8 threads in sum",
                "messaging.publish_bare",
                800_000,
                200_000,
                threads=8,
            ),
            Case("publish-8", "publish, 8 threads in sum", "messaging.publish_ours", 800_000, 200_000, threads=8),
            Case(
                "publish-8-eager",
                "publish, 8 threads in sum, linger 1 ms, eager_callers=1",
                "messaging.publish_ours",
                800_000,
                200_000,
                threads=8,
            ),
        ),
    ),
    Section(
        "latency",
        "One message, 100 times a second",
        (
            Case("latency-bare", "confluent-kafka, produce and flush", "messaging.latency_bare", 2_000, 400),
            Case("latency", "publish", "messaging.latency_ours", 2_000, 400),
        ),
    ),
    Section(
        "posting",
        "Metrics over HTTP, answered once Kafka has them; one worker, load generator and broker on the same cores",
        (
            Case(
                "http-bare-100",
                "Falcon and confluent-kafka, nothing validated, bulks of 100 on 16 connections",
                "api.http_bare",
                200_000,
                100_000,
                threads=16,
                bulk=100,
            ),
            Case(
                "http-100",
                "the API, bulks of 100 on 16 connections",
                "api.http_ours",
                200_000,
                100_000,
                threads=16,
                bulk=100,
            ),
            Case(
                "http-bare-1",
                "Falcon and confluent-kafka, nothing validated, one metric a request, 64 connections",
                "api.http_bare",
                10_000,
                6_000,
                threads=64,
            ),
            Case("http-1", "the API, one metric a request, 64 connections", "api.http_ours", 10_000, 6_000, threads=64),
        ),
        repeats=9,
    ),
    Section(
        "consuming",
        "Reading a backlog",
        (
            Case("consume-bare", "confluent-kafka, consume(1000)", "messaging.consume_bare", 4_000_000, 800_000),
            Case("consume", "poll, tracked, committed", "messaging.consume_ours", 4_000_000, 800_000),
            Case("consume-processor", "Processor, no-op handler", "messaging.consume_processor", 4_000_000, 800_000),
            Case(
                "consume-arroyo",
                "arroyo, no-op step",
                "messaging.consume_arroyo",
                500_000,
                150_000,
                environment="arroyo",
            ),
        ),
        reads=True,
    ),
    Section(
        "memory",
        "Memory under a slow handler",
        (
            Case(
                "memory",
                "Processor over a backlog of 2 GB (--quick: 0.2 GB)",
                "messaging.memory_processor",
                8_000_000,
                800_000,
            ),
        ),
        reads=True,
        repeats=1,
        quick_repeats=1,
    ),
    Section(
        "storing",
        "Measurements into PostgreSQL, in batches of 20,000, each with its offset in one transaction",
        (
            Case("store-bare", "psycopg, binary COPY into the keyed table", "storage.storing", 400_000, 100_000),
            Case("store", "Writer.write, all rows new", "storage.storing", 400_000, 100_000),
            Case(
                "merge-bare",
                "psycopg, temporary table + ON CONFLICT, 1 % of rows repeated",
                "storage.storing",
                400_000,
                100_000,
            ),
            Case("merge", "Writer.write, 1 % of rows repeated", "storage.storing", 400_000, 100_000),
            Case(
                "replay-bare",
                "psycopg, temporary table + ON CONFLICT, every row repeated",
                "storage.storing",
                400_000,
                100_000,
            ),
            Case("replay", "Writer.write, every row repeated", "storage.storing", 400_000, 100_000),
        ),
        stores=True,
    ),
    Section(
        "persisting",
        "From Kafka to rows, exactly once; Kafka, database and persister on the same cores",
        (
            Case(
                "persist-bare", "a loop by hand, PostgreSQL, COPY into the keyed table", "storage.persisting", *_BACKLOG
            ),
            Case("persist", "the persister, PostgreSQL, one process", "storage.persisting", *_BACKLOG),
            Case("persist-2", "the persister, PostgreSQL, two processes", "storage.persisting", *_BACKLOG, threads=2),
            Case(
                "persist-conflict-bare",
                "a loop by hand, PostgreSQL, temporary table + ON CONFLICT, 1 % of rows repeated",
                "storage.persisting",
                *_BACKLOG,
                repeats=True,
            ),
            Case(
                "persist-conflict",
                "the persister, PostgreSQL, one process, 1 % of rows repeated",
                "storage.persisting",
                *_BACKLOG,
                repeats=True,
            ),
            Case(
                "persist-sqlite-bare",
                "a loop by hand, SQLite, ON CONFLICT",
                "storage.persisting",
                *_BACKLOG,
                database="sqlite",
            ),
            Case("persist-sqlite", "the persister, SQLite", "storage.persisting", *_BACKLOG, database="sqlite"),
        ),
        reads=True,
        stores=True,
        repeats=3,
    ),
    Section(
        "aggregating",
        "A backlog in 4 partitions on Spark, two cores; Kafka and database on the same",
        (
            Case("aggregate-bare", "from_json and one grouped aggregation", "pipeline.aggregating", *_SPARK, threads=2),
            Case("aggregate-5", "aggregate, 5 specifications", "pipeline.aggregating", *_SPARK, threads=2),
            Case("aggregate-26", "aggregate, 26 specifications", "pipeline.aggregating", *_SPARK, threads=2),
        ),
        reads=True,
        stores=True,
        repeats=3,
        quick_repeats=1,
    ),
    Section(
        "evaluating",
        "The same by definitions of alarms, of which a metric matches one; a window each minute, and its evaluation",
        (
            Case("evaluate-beside-5", "aggregate, 5 specifications", "pipeline.aggregating", *_SPARK, threads=2),
            Case("evaluate-1000", "evaluate, 1,000 definitions", "pipeline.evaluating", *_SPARK, threads=2),
            Case("evaluate-10000", "evaluate, 10,000 definitions", "pipeline.evaluating", *_SPARK, threads=2),
        ),
        reads=True,
        stores=True,
        quick_repeats=1,
    ),
    Section(
        "archiving",
        "A backlog in 4 partitions to Parquet by Spark, two cores; Kafka and database on the same",
        (
            Case("archive-bare", "the records copied, nothing looked into", "pipeline.archiving", *_SPARK, threads=2),
            Case("archive", "archive, by the hour of each record's own time", "pipeline.archiving", *_SPARK, threads=2),
        ),
        reads=True,
        stores=True,
        repeats=3,
        quick_repeats=1,
    ),
)

REQUIRED = (
    Required("send", "rate", 0.5, "send-bare"),
    Required("send-no-ids", "rate", 0.7, "send-bare"),
    Required("send", "rate", 8, "send-arroyo"),
    Required("publish", "rate", 1, "publish-old"),
    Required("publish-8", "rate", 2.5, "publish-old"),
    Required("latency", "p99_ms", 2, "latency-bare"),
    Required("http-100", "rate", 0.7, "http-bare-100"),
    Required("http-1", "rate", 0.8, "http-bare-1"),
    Required("consume", "rate", 0.7, "consume-bare"),
    Required("consume", "rate", 10, "consume-arroyo"),
    Required("memory", "peak_mb", 150),
    Required("store", "rate", 0.8, "store-bare"),
    Required("merge", "rate", 0.8, "merge-bare"),
    Required("replay", "rate", 0.8, "replay-bare"),
    Required("persist", "rate", 0.8, "persist-bare"),
    Required("persist-conflict", "rate", 0.8, "persist-conflict-bare"),
    Required("persist-sqlite", "rate", 0.7, "persist-sqlite-bare"),
    Required("aggregate-5", "rate", 1, "aggregate-bare"),
    Required("aggregate-26", "rate", 0.4, "aggregate-bare"),
    Required("evaluate-1000", "rate", 0.7, "evaluate-beside-5"),
    Required("evaluate-10000", "rate", 0.6, "evaluate-beside-5"),
    Required("archive", "rate", 0.8, "archive-bare"),
)
