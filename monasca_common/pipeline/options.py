# SPDX-License-Identifier: Apache-2.0
"""The options of ``[spark]``, of ``[pipeline_<job>]``, and what these groups share with every consumer's."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from oslo_config import cfg

from monasca_common.kafka import options as kafka_options
from monasca_common.kafka.config import config_file, configuration
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.options import SecretLinesOpt, SecretOpt
from monasca_common.pipeline import specification_table
from monasca_common.pipeline.ledger import Ledger
from monasca_common.pipeline.output import Publisher
from monasca_common.pipeline.settings import (
    AggregateSettings,
    BackfillSettings,
    SparkSettings,
    StatusSettings,
    StreamSettings,
)
from monasca_common.pipeline.specification import Specifications
from monasca_common.pipeline.specification_reader import load
from monasca_common.pipeline.specification_reader import read as read_specifications
from monasca_common.storage.options import storage_settings

SPARK_GROUP = "spark"
AGGREGATE_GROUP = "pipeline_aggregate"
BACKFILL_GROUP = "pipeline_backfill"

SPARK_OPTIONS = [
    cfg.StrOpt(
        "master",
        default="local[*]",
        help="Where Spark runs: local[*] (this machine, all cores), local[N], spark://host:7077, yarn, k8s://...",
    ),
    cfg.ListOpt(
        "packages",
        default=[],
        help="Maven coordinates that Spark fetches at the start. Unset: the Kafka connector of the installed pyspark.",
    ),
    cfg.ListOpt("jars", default=[], help="Jar files that Spark loads beside them; paths that every node can read."),
    cfg.StrOpt("driver_memory", default="1g", help="Heap of the driver's JVM, as Java writes it: 512m, 2g."),
    cfg.IntOpt(
        "shuffle_partitions",
        default=8,
        min=1,
        max=100_000,
        help="Tasks in which partial aggregates are brought together; about one for each core. May change at any time.",
    ),
    SecretLinesOpt(
        "options",
        default=[],
        help="Further options of Spark, one name=value a line, such as spark.executor.memory=2g. They come last. "
        "Write $$ for each $.",
    ),
]


def status_options() -> list[cfg.Opt]:
    """Of every job."""
    return [
        cfg.StrOpt(
            "status_host",
            default="127.0.0.1",
            help="The address at which /metrics answers; 0.0.0.0 for every one of this machine. It asks nobody's name.",
        ),
        cfg.PortOpt("status_port", help="The port at which /metrics (Prometheus) answers. Unset: nowhere."),
    ]


def stream_options(*, trigger_seconds: float = 10.0) -> list[cfg.Opt]:
    """Of every job that follows a topic."""
    return [
        SecretOpt(
            "connection",
            help="The database in which the job keeps its state, as a SQLAlchemy URL of sqlite or postgresql. Unset: "
            "[database] connection. Write $$ for each $.",
        ),
        cfg.FloatOpt(
            "trigger_seconds",
            default=trigger_seconds,
            min=0.0,
            max=86_400.0,
            help="From the start of a batch to that of the next, when there is not more to read than one may have.",
        ),
        cfg.IntOpt(
            "max_offsets_per_trigger",
            default=1_000_000,
            min=1,
            max=10_000_000_000,
            help="How many offsets a batch may have, of all partitions together.",
        ),
        cfg.IntOpt(
            "min_partitions",
            default=0,
            min=0,
            max=100_000,
            help="Tasks in which a batch is read, at least; partitions of the topic are cut. 0: one for each of them.",
        ),
        *status_options(),
    ]


_AGGREGATE_OPTIONS = [
    *stream_options(),
    cfg.StrOpt(
        "specifications",
        default="files",
        choices=[
            ("files", "those of transform_specs and pre_transform_specs"),
            ("database", "those that `monasca-common pipeline specifications load` has put there"),
        ],
        help="Where specifications are. They are read when the job starts.",
    ),
    cfg.StrOpt(
        "transform_specs",
        help="File of JSON lines: how each metric id is aggregated. Unset: the specifications that are shipped.",
    ),
    cfg.StrOpt(
        "pre_transform_specs",
        help="File of JSON lines: which records each metric id is made of. Unset: those that are shipped.",
    ),
    cfg.StrOpt("output_topic", default="metrics", help="The topic to which aggregates are published, as metrics."),
    cfg.StrOpt("tenant", default="monasca", help="The tenant (project id) to whom the aggregates belong."),
    cfg.StrOpt("region", default="", help="The region of the aggregates."),
    cfg.StrOpt(
        "emit",
        default="update",
        choices=[
            ("update", "publish a period whenever it has changed, marked provisional until it is over"),
            ("final", "publish a period once it is over; what is late corrects it"),
        ],
        help="When aggregates are published.",
    ),
    cfg.IntOpt(
        "slack_seconds",
        default=600,
        min=0,
        max=30 * 86_400,
        help="How long after its end a period counts as open, for records that are late.",
    ),
    cfg.IntOpt(
        "retention_days",
        default=45,
        min=1,
        max=36_525,
        help="How long what is known of a period is kept, by its own time. Records that are older become dead letters.",
    ),
    cfg.IntOpt(
        "duplicates_lookback",
        default=0,
        min=0,
        max=1_000_000_000,
        help="Count a message id once: of each batch the records are left out that have their id in common with an "
        "earlier record of the batch, or with one of so many offsets below it, of each partition. Each batch reads "
        "its own records once more, and all of these offsets: twice the processor time, where they are a fifth of the "
        "batch, 2.2 times, where they are as many. 0: what is in the topic twice counts twice.",
    ),
]

_BACKFILL_OPTIONS = [
    cfg.IntOpt(
        "margin_seconds",
        default=86_400,
        min=600,
        max=30 * 86_400,
        help="How long before the time of an event its message may have been written: reading begins so much before "
        "the range, where it reads Kafka. All else is as [pipeline_aggregate] says.",
    ),
    cfg.StrOpt(
        "source",
        default="kafka",
        choices=[
            ("kafka", "what the topic still has"),
            ("archive", "what [pipeline_archive] has archived of the topic, and from there on Kafka"),
        ],
        help="Where records are read from.",
    ),
    *status_options(),
]

_AGGREGATE_CONSUMER = {"topic": ["metrics"], "group_id": "spark-aggregate"}


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    from monasca_common.pipeline.archive import options as archive  # which is made of what is here

    return [
        (SPARK_GROUP, SPARK_OPTIONS),
        (AGGREGATE_GROUP, [*_AGGREGATE_OPTIONS, *consumer_options(AGGREGATE_GROUP, _AGGREGATE_CONSUMER)]),
        (BACKFILL_GROUP, _BACKFILL_OPTIONS),
        *archive.list_opts(),
    ]


def spark_settings(conf: cfg.ConfigOpts) -> SparkSettings:
    """What a session is made from; registers the options that it reads. Raises `ConfigurationError`."""
    conf.register_opts(SPARK_OPTIONS, group=SPARK_GROUP)
    config_file.check_parsed(conf)
    config_file.check_group(conf, SPARK_GROUP)
    read = GroupReader(conf, SPARK_GROUP)
    return SparkSettings(
        master=read["master"],
        packages=tuple(read["packages"]),
        jars=tuple(read["jars"]),
        driver_memory=read["driver_memory"],
        shuffle_partitions=read["shuffle_partitions"],
        options=MappingProxyType(dict(_name_and_value(line) for line in read.secret("options"))),
    )


def aggregate_settings(conf: cfg.ConfigOpts) -> AggregateSettings:
    """What the job ``aggregate`` is made from. Raises `ConfigurationError`, `InvalidSpecifications`."""
    stream = stream_settings(conf, AGGREGATE_GROUP, _AGGREGATE_OPTIONS, _AGGREGATE_CONSUMER)
    read = GroupReader(conf, AGGREGATE_GROUP)
    if len(stream.consumer.topics) > 1:
        raise read.error("topic", f"names {len(stream.consumer.topics)} topics: this job reads one")
    return AggregateSettings(
        stream=stream,
        specifications=_specifications(read, stream.connection),
        publisher=Publisher(stream.name, read["tenant"], read["region"]),
        output_topic=read["output_topic"],
        emit=read["emit"],
        slack_seconds=read["slack_seconds"],
        retention_days=read["retention_days"],
        duplicates_lookback=read["duplicates_lookback"],
    )


def aggregate_connection(conf: cfg.ConfigOpts) -> str:
    """The database of ``aggregate``. Raises `ConfigurationError`."""
    return stream_settings(conf, AGGREGATE_GROUP, _AGGREGATE_OPTIONS, _AGGREGATE_CONSUMER).connection


def backfill_settings(conf: cfg.ConfigOpts) -> BackfillSettings:
    """What the job ``backfill`` has beside those of ``aggregate``. Raises `ConfigurationError`."""
    conf.register_opts(_BACKFILL_OPTIONS, group=BACKFILL_GROUP)
    config_file.check_parsed(conf)
    config_file.check_group(conf, BACKFILL_GROUP)
    read = GroupReader(conf, BACKFILL_GROUP)
    return BackfillSettings(read["margin_seconds"] * 1000, from_archive=read["source"] == "archive")


def status_settings(conf: cfg.ConfigOpts, group: str) -> StatusSettings:
    """Where a job that comes to an end tells how far it is. Raises `ConfigurationError`."""
    conf.register_opts(status_options(), group=group)
    config_file.check_parsed(conf)
    read = GroupReader(conf, group)
    return StatusSettings(read["status_host"], read["status_port"])


def stream_settings(
    conf: cfg.ConfigOpts, group: str, options: Sequence[cfg.Opt], defaults: Mapping[str, Any]
) -> StreamSettings:
    """What ``group`` says of its topic and its state. ``defaults``: of the consumer's options, where they differ.

    Raises `ConfigurationError`.
    """
    conf.register_opts(options, group=group)
    kafka_options.register(conf, group)
    for name, default in defaults.items():
        conf.set_default(name, default, group=group)
    read = GroupReader(conf, group)
    return StreamSettings(
        consumer=configuration.consumer_settings(conf, group),
        # What is published and what is accounted for are not one transaction: ids and versions make repeats harmless.
        producer=replace(configuration.producer_settings(conf, group), transactional_id=None),
        connection=read.secret("connection") or storage_settings(conf).connection,
        trigger_seconds=read["trigger_seconds"],
        max_offsets_per_trigger=read["max_offsets_per_trigger"],
        min_partitions=read["min_partitions"],
        status_host=read["status_host"],
        status_port=read["status_port"],
    )


def consumer_options(group: str, defaults: Mapping[str, Any]) -> list[cfg.Opt]:
    """Those of every consumer, with this group's defaults, for the sample."""
    options = []
    for option in kafka_options.options_of(group):
        twin = copy.copy(option)
        twin.default = defaults.get(option.dest, option.default)
        options.append(twin)
    return options


def _specifications(read: GroupReader, connection: str) -> Specifications:
    if read["specifications"] == "database":
        return read_specifications(*specification_table.stored(Ledger(connection)))
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
            f"options in group [{SPARK_GROUP}] has a line without a = in it (it may be a secret and is not shown): "
            "write name=value"
        )
    return name.strip(), value.strip()


class GroupReader:
    """Options of one group; what oslo.config refuses is told by name."""

    def __init__(self, conf: cfg.ConfigOpts, group: str) -> None:
        self.group = group
        self._conf = conf

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._conf[self.group], name)
        except (cfg.Error, ValueError) as error:
            raise self.error(name, f"is refused, correct it: {config_file.broken_rule(error)}") from None

    def secret(self, name: str) -> Any:
        # Raised outside of the handler: the original error may quote the value, and would be its context.
        try:
            return getattr(self._conf[self.group], name)
        except (cfg.Error, ValueError):
            pass
        raise self.error(name, "cannot be read: a $ in its value must be written $$ (it is a secret and is not shown)")

    def error(self, name: str, rule: str) -> ConfigurationError:
        return ConfigurationError(f"{name} in group [{self.group}] {rule}")
