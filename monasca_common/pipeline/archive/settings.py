# SPDX-License-Identifier: Apache-2.0
"""What the jobs ``archive`` and ``replay`` are made from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from monasca_common.kafka.settings import ProducerSettings
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import StorageSettings

Compression = Literal["zstd", "snappy", "gzip", "none"]


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """``streams``: one for each topic. ``location``: of the archive, which may have a password in it.
    ``retention_days``: 0: for ever."""

    streams: tuple[StreamSettings, ...]
    location: str = field(repr=False)
    compression: Compression = "zstd"
    retention_days: int = 0


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    topic: str
    producer: ProducerSettings


@dataclass(frozen=True, slots=True)
class StorageTarget:
    kind: Kind
    storage: StorageSettings


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """``topic``: the archived one. ``name`` and ``tenant``: as `Selection` has them."""

    location: str = field(repr=False)
    topic: str
    name: re.Pattern[str] | None
    tenant: re.Pattern[str] | None
    target: KafkaTarget | StorageTarget
