# SPDX-License-Identifier: Apache-2.0
"""How far each job is, from the database and Kafka: whether it runs or not."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from oslo_config import cfg

from monasca_common.pipeline.ledger import Ledger, Source
from monasca_common.pipeline.options import aggregate_settings
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.topic_view import TopicView
from monasca_common.storage.tables import aggregate_period


@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """``next_offset``: all below is accounted for. ``end``: of the log."""

    partition: int
    next_offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Standing:
    """``due``: periods that are to be published; ``behind``: offsets."""

    job: str
    group: str
    topic: str
    behind: int
    due: int
    partitions: tuple[PartitionStanding, ...]


def standings(conf: cfg.ConfigOpts) -> list[Standing]:
    """Of every job that follows a topic. Raises `ConfigurationError`, and the errors of Kafka and of storage."""
    return [_standing("aggregate", aggregate_settings(conf).stream)]


def _standing(job: str, stream: StreamSettings) -> Standing:
    ledger = Ledger(stream.connection)
    ledger.check()
    with TopicView(stream.consumer) as view:
        extents = view.extents()
        stored = ledger.next_offsets(Source(stream.group, stream.topic, view.topic_id()))
    partitions = tuple(
        PartitionStanding(partition, stored.get(partition, extent.first), extent.end)
        for partition, extent in sorted(extents.items())
    )
    behind = sum(each.end - each.next_offset for each in partitions)
    return Standing(job, stream.group, stream.topic, behind, _due(ledger, job), partitions)


def _due(ledger: Ledger, job: str) -> int:
    table = aggregate_period.c
    with ledger.reading() as connection:
        query = sa.select(sa.func.count()).where(table.job == job, table.version > table.published)
        return int(connection.scalar(query) or 0)
