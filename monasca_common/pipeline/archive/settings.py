# SPDX-License-Identifier: Apache-2.0
"""What the jobs ``archive`` and ``replay`` are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from monasca_common.pipeline.settings import StreamSettings

Compression = Literal["zstd", "snappy", "gzip", "none"]


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """``streams``: one for each topic. ``location``: of the archive, which may have a password in it.
    ``retention_days``: 0: for ever."""

    streams: tuple[StreamSettings, ...]
    location: str = field(repr=False)
    compression: Compression = "zstd"
    retention_days: int = 0
