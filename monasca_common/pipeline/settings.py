# SPDX-License-Identifier: Apache-2.0
"""The frozen settings of jobs, declared here as the options of ``[spark]`` and of ``[pipeline_<job>]``.

The group of a job that follows a topic also has the consumer options. This module imports neither a database nor
Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from oslo_config import cfg

from monasca_common.audit.settings import AuditSettings, audit_settings
from monasca_common.kafka.config import (
    GroupReader,
    Option,
    OptionGroup,
    consumer_settings,
    declared,
    group_of,
    made_of,
    option,
    options_of,
    producer_settings,
    register,
    with_defaults,
)
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings, optional_registry_settings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.plugins import consuming_driver
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.models.limits import MOST_DIMENSIONS
from monasca_common.pipeline.specification.reader import load
from monasca_common.pipeline.specification.specification import Publisher, Specifications
from monasca_common.runtime.health import LIVE_SECONDS
from monasca_common.runtime.logs import shown_url
from monasca_common.runtime.otlp_settings import OtlpTopicSettings, otlp_settings
from monasca_common.runtime.settings import StatusSettings
from monasca_common.storage.settings import row_limits, storage_settings

SPARK_GROUP = "spark"
AGGREGATE_GROUP = "pipeline_aggregate"
BACKFILL_GROUP = "pipeline_backfill"
OTLP_MOST_OFFSETS = 500
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of a Spark session."""

    master: str = option(
        "local[*]",
        help="Master URL of Spark: local[*] (this machine, all cores), local[N], spark://host:7077, yarn, k8s://...",
    )
    driver_memory: str = option("1g", help="Heap of the driver's JVM, as Java writes it: 512m, 2g.")
    shuffle_partitions: int = option(
        8,
        minimum=1,
        maximum=100_000,
        unit="tasks",
        help="The number of tasks that merge partial aggregates, about one for each core. Too small: cores are idle. "
        "Too large: batches spend their time on starting tasks. The number can be changed at any time.",
    )
    options: Mapping[str, str] = option(
        default_factory=lambda: MappingProxyType({}),
        secret=True,
        help="Further options of Spark, one name=value per line, such as spark.executor.memory=2g. They override "
        "other settings; jars and packages are added to those of the Kafka connector. Write $$ for each $.",
    )


@dataclass(frozen=True, slots=True)
class JobStatusSettings(StatusSettings):
    """The address at which a job serves its status."""

    live_seconds: float = option(
        LIVE_SECONDS,
        name="status_live_seconds",
        minimum=1.0,
        maximum=86_400.0,
        unit="seconds",
        help="The maximum time of a batch, or of the wait for the next batch, before /healthz returns 503. Too small: "
        "a job is restarted in the middle of a long batch. Too large: a job that hangs is detected late.",
    )


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of a job that reads a topic batch by batch. ``audit``: ``None`` if audits are disabled. Without a
    ``registry``, records in Avro are rejected. ``otlp``: ``None`` for a topic with envelopes."""

    consumer: ConsumerSettings
    producer: ProducerSettings
    connection: str = field(
        repr=False,
        metadata=declared(
            secret=True,
            help="The database of the job's state, as a SQLAlchemy URL of sqlite or postgresql. Unset: [database] "
            "connection. Write $$ for each $.",
        ),
    )
    trigger_seconds: float = option(
        10.0,
        minimum=0.0,
        maximum=float(_DAY_SECONDS),
        unit="seconds",
        help="The time from the start of a batch to the start of the next batch, unless the backlog is larger than one "
        "batch. Too small: the fixed cost of Spark is spent on batches of few records. Larger: batches are fewer and "
        "larger, and results come later.",
    )
    max_offsets_per_trigger: int = option(
        1_000_000,
        minimum=1,
        maximum=10_000_000_000,
        unit="offsets",
        help="The maximum number of offsets of a batch, over all partitions. Too small: the job falls behind its "
        "topic. Too large: a batch exceeds the memory of the executors.",
    )
    min_partitions: int = option(
        0,
        minimum=0,
        maximum=100_000,
        unit="tasks",
        help="The minimum number of tasks that read a batch; partitions of the topic are split. Too small: cores are "
        "idle. Too large: batches spend their time on starting tasks. 0: one task for each partition.",
    )
    status: JobStatusSettings = field(default_factory=JobStatusSettings, metadata=made_of(JobStatusSettings))
    audit: AuditSettings | None = None
    registry: SchemaRegistrySettings | None = None
    otlp: OtlpTopicSettings | None = None
    max_dimensions: int = MOST_DIMENSIONS

    @property
    def tenant_header(self) -> str | None:
        """Return the name of the header that executors need with each value."""
        return None if self.otlp is None else self.otlp.otlp_tenant_header

    @property
    def name(self) -> str:
        """The key of the stored state. A different group or topic starts without state."""
        return f"{self.group}/{self.topic}"

    @property
    def topic(self) -> str:
        return self.consumer.topics[0]

    @property
    def group(self) -> str:
        return self.consumer.group_id

    def facts(self) -> Mapping[str, object]:
        """Return the values to log at a job's start, without secrets."""
        return {
            "reads": f"{self.topic} as {self.group}" + ("" if self.otlp is None else f", in {self.otlp.format}"),
            "from_brokers": self.consumer.connection.bootstrap_servers,
            "with_driver": consuming_driver(self.consumer.connection),
            "keeps_state_in": shown_url(self.connection),
            "metrics_at": self.status.address,
        }


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The batch limits of a job that keeps its state in a database."""

    duplicates_lookback: int = option(
        0,
        minimum=0,
        maximum=1_000_000_000,
        unit="offsets",
        help="The number of offsets before a batch, in each partition, to search for message ids. A record is skipped "
        "if an earlier record, in the batch or in these offsets, has the same id. The driver remembers up to 1,000,000 "
        "ids for small batches (one_task_offsets); a larger batch reads its own records twice and the searched "
        "offsets once. Too small: later copies count again. 0: all copies count.",
    )
    one_task_offsets: int = option(
        10_000,
        minimum=0,
        maximum=1_000_000,
        unit="offsets",
        help="The maximum number of offsets of a batch that the driver reads and computes itself, without a Spark job. "
        "Too small: batches of few records cost as much as large ones. Too large: one core does work that all cores "
        "could share. 0: never.",
    )


@dataclass(frozen=True, slots=True)
class AggregateSettings:
    """The settings of the job ``aggregate``."""

    stream: StreamSettings
    specifications: Specifications = field(
        metadata=made_of(
            Option(
                "transform_specs",
                help="File of JSON lines that define how each metric id is aggregated. Unset: the shipped "
                "specifications.",
            ),
            Option(
                "pre_transform_specs",
                help="File of JSON lines that select the records of each metric id. Unset: the shipped specifications.",
            ),
        )
    )
    output_topic: str = field(
        metadata=declared(default="metrics", help="The topic to which aggregates are published, as metrics.")
    )
    publisher: Publisher = field(
        metadata=made_of(
            Option("tenant", default="monasca", help="The tenant (project id) that owns the aggregates."),
            Option("region", default="", help="The region of the aggregates."),
        )
    )
    emit: Literal["update", "final"] = option(
        "update",
        choices={
            "update": "publish a period after each change, marked provisional until the period is over",
            "final": "publish a period when it is over; late records correct it",
        },
        help="When a job publishes aggregates.",
    )
    slack_seconds: int = option(
        600,
        minimum=0,
        maximum=30 * _DAY_SECONDS,
        unit="seconds",
        help="The time after its end for which a period stays open for late records. Too small: more corrections are "
        "published after the period. Larger: final aggregates come later.",
    )
    retention_days: int = option(
        45,
        minimum=1,
        maximum=36_525,
        unit="days",
        help="The number of days to keep the state of a period, by its event time. Older records become dead letters. "
        "Larger: the database has more rows.",
    )
    limits: BatchLimits = field(default_factory=BatchLimits, metadata=made_of(BatchLimits))


@dataclass(frozen=True, slots=True)
class BackfillSettings:
    """The settings of the job ``backfill`` in addition to those of ``aggregate``."""

    margin_seconds: int = option(
        _DAY_SECONDS,
        minimum=600,
        maximum=30 * _DAY_SECONDS,
        unit="seconds",
        help="The maximum time by which a message can be written before its event time. When backfill reads Kafka, it "
        "starts this much before the range. Too small: records that were written even earlier are skipped. Larger: "
        "backfill reads more. All other options of backfill are in [pipeline_aggregate].",
    )
    source: Literal["kafka", "archive"] = option(
        "kafka",
        choices={
            "kafka": "the records that are still in the topic",
            "archive": "the records that [pipeline_archive] has archived, and later records from Kafka",
        },
        help="The source from which backfill reads records.",
    )
    status: JobStatusSettings = field(default_factory=JobStatusSettings, metadata=made_of(JobStatusSettings))


@dataclass(frozen=True, slots=True)
class StreamGroup:
    """The option group of a job that reads a topic: its own options, and consumer options with different
    ``defaults``."""

    own: OptionGroup
    defaults: Mapping[str, Any]

    def listed(self) -> tuple[str, list[cfg.Opt]]:
        consumer = with_defaults(group_of(self.own.name).options, self.defaults)
        return OptionGroup(self.own.name, (*self.own.options, *consumer)).listed()

    def settings(self, conf: cfg.ConfigOpts, connection: str | None = None) -> tuple[GroupReader, StreamSettings]:
        """Return the reader of the group, and the settings of its topic and state. ``connection``: the value for a
        group without this option. Raises `ConfigurationError`."""
        self.own.register(conf)
        register(conf, self.own.name)
        for name, default in self.defaults.items():
            conf.set_default(name, default, group=self.own.name)
        # this precedes the consumer's reader, which would report a removed name as unknown
        read = GroupReader(conf, self.own)
        consumer = consumer_settings(conf, self.own.name)
        audit = audit_settings(conf)
        stream = read.settings(
            StreamSettings,
            consumer=consumer,
            status=read.settings(JobStatusSettings),
            # Publishing and storing offsets do not share a transaction, but ids and versions make repeats harmless.
            producer=replace(producer_settings(conf, self.own.name), transactional_id=None),
            connection=connection or read["connection"] or storage_settings(conf).connection,
            audit=audit if audit.enabled else None,
            registry=optional_registry_settings(conf),
        )
        return read, stream


_SPARK = OptionGroup(
    SPARK_GROUP,
    options_of(SparkSettings),
    removed={
        "jar_digests": "spark.jars in options names jar files that you have checked",
        "jars": "spark.jars in options names jar files",
        "packages": "spark.jars.packages in options names Maven coordinates",
    },
)
_AGGREGATE = StreamGroup(
    OptionGroup(
        AGGREGATE_GROUP,
        (*options_of(StreamSettings), *options_of(AggregateSettings)),
        removed={"specifications": "the job reads the files pre_transform_specs and transform_specs"},
    ),
    MappingProxyType({"topic": ["metrics"], "group_id": "spark-aggregate"}),
)
# The topic that the persister stores, and its format
_METRICS_TOPIC = OptionGroup(
    "kafka_metrics",
    (*(each for each in group_of("kafka_metrics").options if each.name == "topic"), *options_of(OtlpTopicSettings)),
    shared=True,
)
_BACKFILL = OptionGroup(BACKFILL_GROUP, options_of(BackfillSettings))


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return every group with its options, for oslo.config's generator of sample files."""
    return [_SPARK.listed(), _AGGREGATE.listed(), _BACKFILL.listed()]


def spark_settings(conf: cfg.ConfigOpts) -> SparkSettings:
    """Return the settings of a Spark session. Raises `ConfigurationError`."""
    read = GroupReader(conf, _SPARK)
    return read.settings(SparkSettings, options=MappingProxyType(dict(map(_name_and_value, read["options"]))))


def aggregate_settings(conf: cfg.ConfigOpts) -> AggregateSettings:
    """Return the settings of the job ``aggregate``. Raises `ConfigurationError`, `InvalidSpecifications`."""
    read, stream = _AGGREGATE.settings(conf)
    stream = decoded_stream(conf, read, stream)
    if stream.otlp is not None and read["output_topic"] == stream.topic:
        raise read.error("output_topic", f"is {stream.topic}, whose format is {stream.otlp.format}: name another topic")
    if read["slack_seconds"] > read["retention_days"] * _DAY_SECONDS:
        raise read.error("slack_seconds", "exceeds retention_days, so open periods would be removed: lower it")
    return read.settings(
        AggregateSettings,
        stream=stream,
        specifications=_specifications(read),
        publisher=Publisher(stream.name, read["tenant"], read["region"]),
        limits=read.settings(BatchLimits),
    )


def decoded_stream(conf: cfg.ConfigOpts, read: GroupReader, stream: StreamSettings) -> StreamSettings:
    """Return the settings of a job that decodes the messages of one topic, including the topic's format.

    Raises `ConfigurationError`.
    """
    if len(stream.consumer.topics) > 1:
        raise read.error("topic", f"names {len(stream.consumer.topics)} topics: this job reads one topic")
    stream = replace(stream, max_dimensions=row_limits(conf).max_dimensions)
    topics = GroupReader(conf, _METRICS_TOPIC)
    otlp = otlp_settings(topics) if stream.topic in (topics["topic"] or ()) else None
    if otlp is None:
        return stream
    if not read.is_set("max_offsets_per_trigger"):
        stream = replace(stream, max_offsets_per_trigger=OTLP_MOST_OFFSETS)
    return replace(stream, otlp=otlp)


def aggregate_stream(conf: cfg.ConfigOpts) -> tuple[StreamSettings, str]:
    """Return the topics that ``aggregate`` reads and writes, without reading its specifications. Raises
    `ConfigurationError`."""
    read, stream = _AGGREGATE.settings(conf)
    return stream, read["output_topic"]


def backfill_settings(conf: cfg.ConfigOpts) -> BackfillSettings:
    """Return the settings of ``[pipeline_backfill]``. Raises `ConfigurationError`."""
    read = GroupReader(conf, _BACKFILL)
    return read.settings(BackfillSettings, status=read.settings(JobStatusSettings))


def _specifications(read: GroupReader) -> Specifications:
    try:
        return load(_path(read["pre_transform_specs"]), _path(read["transform_specs"]))
    except OSError as error:
        raise ConfigurationError(
            f"a file of specifications in group [{read.group}] cannot be read: {error.filename}: {error.strerror}"
        ) from None


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None


def _name_and_value(line: str) -> tuple[str, str]:
    name, separator, value = line.partition("=")
    if not separator or not name.strip():
        raise ConfigurationError(
            f"options in group [{SPARK_GROUP}] has a line without = (not shown, because it may be a secret): "
            "write name=value"
        )
    return name.strip(), value.strip()
