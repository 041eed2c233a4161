# SPDX-License-Identifier: Apache-2.0
"""What a persister is made from: frozen, and checked before it gets here."""

from __future__ import annotations

from dataclasses import dataclass

from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import StorageSettings


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """One kind of data: who reads it and how many share the work. ``name`` is its group of options.

    ``producer`` writes its dead letters, to the servers that it reads from.
    """

    name: str
    kind: Kind
    num_processors: int
    threads: int
    max_cached_series: int
    consumer: ConsumerSettings
    producer: ProducerSettings


@dataclass(frozen=True, slots=True)
class PersisterSettings:
    """``status_port``: ``None`` for no status at all. ``max_consecutive_dead_letters``: ``None`` for no limit."""

    groups: tuple[GroupSettings, ...]
    storage: StorageSettings
    status_host: str = "127.0.0.1"
    status_port: int | None = None
    max_consecutive_dead_letters: int | None = None
