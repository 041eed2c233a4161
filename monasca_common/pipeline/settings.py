# SPDX-License-Identifier: Apache-2.0
"""What jobs are made from: frozen, and checked before it gets here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.pipeline.output import Publisher
from monasca_common.pipeline.specification import Specifications


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """``packages`` are Maven coordinates; none: the Kafka connector of the pyspark that is installed."""

    master: str = "local[*]"
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    driver_memory: str = "1g"
    shuffle_partitions: int = 8
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How a job goes through its topic, batch by batch.

    ``trigger_seconds``: from the start of one batch to that of the next, where there is not more to read.
    ``max_offsets_per_trigger``: of all partitions. ``min_partitions``: tasks a batch is cut into, at least; 0: one for
    each partition of the topic.
    """

    consumer: ConsumerSettings
    producer: ProducerSettings
    connection: str = field(repr=False)
    trigger_seconds: float = 10.0
    max_offsets_per_trigger: int = 1_000_000
    min_partitions: int = 0
    status_host: str = "127.0.0.1"
    status_port: int | None = None

    @property
    def name(self) -> str:
        """Under which its state is kept: another group, or another topic, begins anew."""
        return f"{self.group}/{self.topic}"

    @property
    def topic(self) -> str:
        return self.consumer.topics[0]

    @property
    def group(self) -> str:
        return self.consumer.group_id


@dataclass(frozen=True, slots=True)
class AggregateSettings:
    """``emit``: publish a period whenever it changes (marked provisional while it is open), or once it is over.

    ``slack_seconds``: how long after its end a period stays open for what is late. ``duplicates_lookback``: how many
    offsets of each partition are searched for an earlier copy of a message; 0: none, and copies count.
    """

    stream: StreamSettings
    specifications: Specifications
    publisher: Publisher
    output_topic: str
    emit: Literal["update", "final"] = "update"
    slack_seconds: int = 600
    retention_days: int = 45
    duplicates_lookback: int = 0


@dataclass(frozen=True, slots=True)
class StatusSettings:
    """Where /metrics answers; without a port nowhere."""

    host: str = "127.0.0.1"
    port: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillSettings:
    """``margin_ms``: how long before the time of an event its message may have been written."""

    margin_ms: int
    from_archive: bool = False
