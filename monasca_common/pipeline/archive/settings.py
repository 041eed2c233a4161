# SPDX-License-Identifier: Apache-2.0
"""The frozen settings of the job ``archive``, declared here as the options of ``[pipeline_archive]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from oslo_config import cfg

from monasca_common.kafka.config import GroupReader, OptionGroup, declared, option, options_of, with_defaults
from monasca_common.pipeline.settings import StreamGroup, StreamSettings

ARCHIVE_GROUP = "pipeline_archive"


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The settings of the job. ``streams``: one for each topic. ``location``: may contain a password."""

    streams: tuple[StreamSettings, ...]
    location: str = field(
        repr=False,
        metadata=declared(
            secret=True,
            help="The location of the archive: an absolute path that all nodes share, or a URI: s3://bucket/folder "
            "(or s3a://), gs://, abfs://, or hdfs://host:port/folder (which needs Hadoop's native library). Required. "
            "Write $$ for each $.",
        ),
    )
    retention_days: int = option(
        0,
        minimum=0,
        maximum=36_525,
        unit="days",
        help="The number of days to keep records, by their event time. Whole hours are removed, regardless of when "
        "their records arrived. Larger: the archive takes more space. 0: records are never removed.",
    )


_ARCHIVE = StreamGroup(
    OptionGroup(
        ARCHIVE_GROUP,
        (*with_defaults(options_of(StreamSettings), {"trigger_seconds": 300.0}), *options_of(ArchiveSettings)),
        removed={
            "columns": "values are archived unchanged, and readers parse their JSON",
            "compact_to_mb": "trigger_seconds determines the number of files",
            "compression": "files are compressed with zstd",
        },
    ),
    MappingProxyType({"topic": ["metrics"], "group_id": "spark-archive"}),
)
_LOCATION = OptionGroup(ARCHIVE_GROUP, options_of(ArchiveSettings, "location"), shared=True)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the group with its options, for oslo.config's generator of sample files."""
    return [_ARCHIVE.listed()]


def has_archive(conf: cfg.ConfigOpts) -> bool:
    """Return whether the location of the archive is set. Raises `ConfigurationError` if the option cannot be read."""
    return bool(GroupReader(conf, _LOCATION)["location"])


def archive_location(conf: cfg.ConfigOpts, *, remedy: str) -> str:
    """Return the location of the archive. Raises `ConfigurationError`, with ``remedy`` in its message, if the option is
    not set."""
    read = GroupReader(conf, _LOCATION)
    location: str | None = read["location"]
    if not location:
        raise read.error("location", f"is not set{remedy}")
    return location


def archive_settings(conf: cfg.ConfigOpts) -> ArchiveSettings:
    """Return the settings of the job ``archive``. Raises `ConfigurationError`."""
    read, together = _ARCHIVE.settings(conf)
    return read.settings(
        ArchiveSettings,
        streams=tuple(
            replace(together, consumer=replace(together.consumer, topics=(topic,)))
            for topic in together.consumer.topics
        ),
        location=archive_location(conf, remedy=", and there is no default: write an absolute path or a URI"),
    )
