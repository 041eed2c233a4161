# SPDX-License-Identifier: Apache-2.0
"""The compared cases and the required ratios."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """``module``: its name below ``benchmarks``. ``needs``: what `benchmarks.peers` installs for the case, which is
    skipped if this fails.
    """

    name: str
    title: str
    module: str
    messages: int
    quick_messages: int
    threads: int = 1
    bulk: int = 1  # messages in one HTTP request or one `publish`
    needs: str | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Benchmark cases that run in turn in each repeat. ``backlog``: the records that all cases read, ``messages``,
    ``metrics``, or ``formats`` (metrics in JSON, and in Avro in a second topic for the cases ``…-avro``); without it,
    each run writes its own topic. ``stores``: whether each run has its own database.
    """

    name: str
    title: str
    cases: tuple[Case, ...]
    backlog: str | None = None
    stores: bool = False
    repeats: int = 5
    quick_repeats: int = 3


@dataclass(frozen=True, slots=True)
class Required:
    """The rate of ``case`` is at least ``ratio`` times that of ``peer``. A ``goal`` is printed, but not checked."""

    case: str
    ratio: float
    peer: str
    goal: bool = False


_BULKS = (400_000, 96_000)
_AUDITED = (1_000_000, 400_000)
_BACKLOG = (1_000_000, 250_000)
_SPARK = (2_000_000, 500_000)
_STORE = "storage.persisting"

SECTIONS = (
    Section(
        "producing",
        "Send without waiting",
        (
            Case("send-bare", "confluent-kafka, counting callback", "messaging.send_bare", 2_000_000, 400_000),
            Case("send", "send with message ids, and flush", "messaging.send_ours", 2_000_000, 400_000),
            Case("send-confluent", "send, driver confluent", "messaging.send_ours", 2_000_000, 400_000),
        ),
    ),
    Section(
        "publishing",
        "Publish bulks with known outcome, of 100 messages unless stated",
        (
            Case("publish-old", "monasca-common 3.8", "messaging.publish_old", *_BULKS, bulk=100, needs="old"),
            Case("publish-bare", "confluent-kafka, ids and callbacks", "messaging.publish_bare", *_BULKS, bulk=100),
            Case("publish", "publish", "messaging.publish_ours", *_BULKS, bulk=100),
            Case("publish-8", "publish, 8 threads", "messaging.publish_ours", *_BULKS, threads=8, bulk=100),
            Case("publish-counting", "confluent-kafka, 1,000 counted", "messaging.publish_bare", *_BULKS, bulk=1000),
            Case("publish-1000", "publish, bulks of 1,000", "messaging.publish_ours", *_BULKS, bulk=1000),
        ),
    ),
    Section(
        "latency",
        "Publish one message, 100 times a second",
        (
            Case("latency-bare", "confluent-kafka, produce and flush", "messaging.publish_latency", 3_000, 1_000),
            Case("latency", "publish", "messaging.publish_latency", 3_000, 1_000),
        ),
    ),
    Section(
        "auditing",
        "Send, and publish bulks of 100, counted for the audit",
        (
            Case("send-uncounted", "send", "messaging.send_ours", *_AUDITED),
            Case("send-audited", "send, audited", "messaging.send_ours", *_AUDITED),
            Case("publish-uncounted", "publish", "messaging.publish_ours", *_BULKS, bulk=100),
            Case("publish-audited", "publish, audited", "messaging.publish_ours", *_BULKS, bulk=100),
        ),
        repeats=9,
    ),
    Section(
        "posting",
        "Metrics over HTTP, with a response after Kafka's acknowledgement; one worker",
        (
            Case("http-bare-100", "Falcon, bulks of 100", "api.posting", 200_000, 100_000, threads=16, bulk=100),
            Case("http-100", "the API, bulks of 100", "api.posting", 200_000, 100_000, threads=16, bulk=100),
            Case("http-bare-1", "Falcon, one metric a request", "api.posting", 10_000, 6_000, threads=64),
            Case("http-1", "the API, one metric a request", "api.posting", 10_000, 6_000, threads=64),
        ),
        repeats=9,
    ),
    Section(
        "receiving",
        "Samples of Prometheus' remote write and of OTLP in bulks of 500, and the same metrics in JSON",
        (
            Case("http-bare-500", "Falcon, JSON", "api.posting", 400_000, 100_000, threads=16, bulk=500),
            Case("prometheus-bare-500", "Falcon, remote write", "api.posting", 400_000, 100_000, threads=16, bulk=500),
            Case("prometheus-500", "the API, remote write", "api.posting", 400_000, 100_000, threads=16, bulk=500),
            Case("otlp-500", "the API, OTLP in protobuf", "api.posting", 400_000, 100_000, threads=16, bulk=500),
        ),
    ),
    Section(
        "posting-avro",
        "Metrics over HTTP, in JSON and in Avro",
        (
            Case("http-json", "messages in JSON, bulks of 100", "api.posting", 200_000, 100_000, threads=16, bulk=100),
            Case("http-avro", "messages in Avro, bulks of 100", "api.posting", 200_000, 100_000, threads=16, bulk=100),
        ),
    ),
    Section(
        "consuming",
        "Read a backlog",
        (
            Case("consume-bare", "confluent-kafka, consume(1000)", "messaging.consume_bare", 4_000_000, 800_000),
            Case("consume", "poll, tracked, committed", "messaging.consume_ours", 4_000_000, 800_000),
            Case("consume-confluent", "poll, driver confluent", "messaging.consume_ours", 4_000_000, 800_000),
            Case("processor", "Processor, no-op handler", "messaging.consume_processor", 4_000_000, 800_000),
        ),
        backlog="messages",
    ),
    Section(
        "asyncio",
        "asyncio: send without waiting, and publish bulks of 100 with 8 threads or tasks",
        (
            Case("aio-sync-send", "send, on a thread", "messaging.send_ours", *_BULKS),
            Case("aio-send", "await send, and flush", "messaging.aio_ours", *_BULKS),
            Case("aio-confluent", "confluent_kafka.aio, a future each", "messaging.aio_peers", *_BULKS),
            Case("aio-aiokafka", "aiokafka, a future each", "messaging.aio_peers", *_BULKS, needs="aiokafka"),
            Case("aio-sync-publish", "publish, 8 threads", "messaging.publish_ours", *_BULKS, threads=8, bulk=100),
            Case("aio-publish", "await publish, 8 tasks", "messaging.aio_ours", *_BULKS, threads=8, bulk=100),
        ),
    ),
    Section(
        "asyncio-reading",
        "asyncio: read a backlog",
        (
            Case("aio-sync-processor", "Processor, no-op handler", "messaging.consume_processor", *_BACKLOG),
            Case("aio-processor", "AsyncProcessor, no-op handler", "messaging.aio_ours", *_BACKLOG),
            Case("aio-read-confluent", "confluent_kafka.aio, consume(1000)", "messaging.aio_peers", *_BACKLOG),
            Case("aio-read-aiokafka", "aiokafka, getmany", "messaging.aio_peers", *_BACKLOG, needs="aiokafka"),
        ),
        backlog="messages",
    ),
    Section(
        "persisting",
        "From Kafka to rows in PostgreSQL, exactly once unless stated",
        (
            Case("persist-bare", "a hand-written loop, COPY into the keyed table", _STORE, *_BACKLOG),
            Case("persist", "the persister, one process", _STORE, *_BACKLOG),
            Case("sink", "the sink, insert by message id, one process", _STORE, *_BACKLOG),
            Case("sink-upsert", "the sink, upsert by series and time, one process", _STORE, *_BACKLOG),
            Case("sink-upsert-debezium", "Debezium's JDBC sink, the same upsert", _STORE, *_BACKLOG, needs="debezium"),
            Case("persist-go", "Go, COPY into the keyed table, at least once", _STORE, *_BACKLOG, needs="go"),
            Case("persist-go-conflict", "Go, temporary table and ON CONFLICT", _STORE, *_BACKLOG, needs="go"),
        ),
        backlog="metrics",
        stores=True,
        repeats=3,
    ),
    Section(
        "persisting-avro",
        "From Kafka to rows in PostgreSQL, in JSON and in Avro",
        (
            Case("persist-json", "envelopes in JSON", _STORE, *_BACKLOG),
            Case("persist-avro", "envelopes in Avro", _STORE, *_BACKLOG),
        ),
        backlog="formats",
        stores=True,
        repeats=3,
    ),
    Section(
        "aggregating",
        "A backlog on Spark, local[2]",
        (
            Case("aggregate-bare", "from_json and one aggregation", "pipeline.aggregating", *_SPARK, threads=2),
            Case("aggregate-5", "aggregate, 5 specifications", "pipeline.aggregating", *_SPARK, threads=2),
        ),
        backlog="metrics",
        stores=True,
        repeats=3,
        quick_repeats=1,
    ),
    Section(
        "aggregating-avro",
        "A backlog on Spark in JSON and in Avro, 5 specifications, local[2]",
        (
            Case("aggregate-json", "envelopes in JSON", "pipeline.aggregating", *_SPARK, threads=2),
            Case("aggregate-avro", "envelopes in Avro", "pipeline.aggregating", *_SPARK, threads=2),
        ),
        backlog="formats",
        stores=True,
        repeats=3,
    ),
)

REQUIRED = (
    Required("send", 0.5, "send-bare"),
    Required("send-confluent", 0.3, "send-bare"),
    Required("publish", 1, "publish-old"),
    Required("publish", 1, "publish-bare"),
    Required("publish-8", 1, "send"),
    Required("publish-1000", 1, "publish-counting"),
    Required("send-audited", 0.97, "send-uncounted"),
    Required("publish-audited", 0.98, "publish-uncounted"),
    Required("http-100", 0.7, "http-bare-100"),
    Required("http-1", 0.65, "http-bare-1"),
    Required("prometheus-500", 0.8, "http-bare-500"),
    Required("prometheus-500", 0.8, "prometheus-bare-500"),
    Required("otlp-500", 0.1, "http-bare-500"),
    Required("consume", 1.1, "consume-bare"),
    Required("consume-confluent", 0.7, "consume-bare"),
    Required("processor", 0.9, "consume-bare"),
    Required("aio-send", 0.7, "aio-sync-send"),
    Required("aio-publish", 0.7, "aio-sync-publish"),
    Required("aio-processor", 0.7, "aio-sync-processor"),
    Required("aio-send", 1, "aio-confluent", goal=True),
    Required("aio-send", 1, "aio-aiokafka", goal=True),
    Required("aio-processor", 1, "aio-read-confluent", goal=True),
    Required("aio-processor", 1, "aio-read-aiokafka", goal=True),
    Required("persist", 0.8, "persist-bare"),
    Required("sink", 0.7, "persist", goal=True),
    Required("sink-upsert", 0.7, "persist", goal=True),
    Required("sink-upsert", 2, "sink-upsert-debezium", goal=True),
    Required("persist", 0.8, "persist-go", goal=True),
    Required("persist", 1, "persist-go-conflict", goal=True),
    Required("aggregate-5", 1, "aggregate-bare"),
)
