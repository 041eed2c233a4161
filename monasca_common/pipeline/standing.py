# SPDX-License-Identifier: Apache-2.0
"""How far each job is, from the database and Kafka: whether it runs or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa
from oslo_config import cfg

from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.options import archive_settings, has_archive
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
    """``behind``: offsets. ``due``: what is accounted for and yet to be seen, and what that is: ``waiting``."""

    job: str
    group: str
    topic: str
    behind: int
    due: int
    partitions: tuple[PartitionStanding, ...]
    waiting: str = "periods to publish"


def standings(conf: cfg.ConfigOpts) -> list[Standing]:
    """Of every job that follows a topic; of the archive, where its place is configured.

    Raises `ConfigurationError`, and the errors of Kafka and of storage.
    """
    aggregate = aggregate_settings(conf)
    due = functools.partial(_due, aggregate.publisher.job)
    found = [_standing("aggregate", aggregate.stream, due, "periods to publish")]
    if has_archive(conf):
        streams = archive_settings(conf).streams
        found += [_standing("archive", stream, _committed, "files to put in place") for stream in streams]
    return found


def _standing(job: str, stream: StreamSettings, due: Callable[[Ledger, Source], int], waiting: str) -> Standing:
    ledger = Ledger(stream.connection)
    ledger.check()
    with TopicView(stream.consumer) as view:
        extents = view.extents()
        source = Source(stream.group, stream.topic, view.topic_id())
        stored = ledger.next_offsets(source)
    partitions = tuple(
        PartitionStanding(partition, stored.get(partition, extent.first), extent.end)
        for partition, extent in sorted(extents.items())
    )
    behind = sum(each.end - each.next_offset for each in partitions)
    return Standing(job, stream.group, stream.topic, behind, due(ledger, source), partitions, waiting)


def _due(job: str, ledger: Ledger, _: Source) -> int:
    table = aggregate_period.c
    with ledger.reading() as connection:
        query = sa.select(sa.func.count()).where(table.job == job, table.version > table.published)
        return int(connection.scalar(query) or 0)


def _committed(ledger: Ledger, source: Source) -> int:
    with ledger.reading() as connection:
        return len(manifest.find(connection, source, manifest.State.COMMITTED))
