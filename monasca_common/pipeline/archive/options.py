# SPDX-License-Identifier: Apache-2.0
"""The options of ``[pipeline_archive]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oslo_config import cfg

from monasca_common.kafka.options import SecretOpt
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.options import GroupReader, consumer_options, stream_options, stream_settings
from monasca_common.pipeline.settings import StreamSettings

ARCHIVE_GROUP = "pipeline_archive"

LOCATION = SecretOpt(
    "location",
    help="Where the archive is: an absolute path that every node has in common, or a URI that pyarrow opens: "
    "s3://bucket/folder, gs://, abfs://, hdfs://host:port/folder. There is no default. Write $$ for each $.",
)

_ARCHIVE_OPTIONS = [
    *stream_options(trigger_seconds=300.0),
    LOCATION,
    cfg.StrOpt(
        "compression",
        default="zstd",
        choices=["zstd", "snappy", "gzip", "none"],
        help="Of the columns of a Parquet file.",
    ),
    cfg.IntOpt(
        "retention_days",
        default=0,
        min=0,
        max=36_525,
        help="How long records are kept, by their own time: whole hours are removed, whenever their records came. 0: "
        "for ever.",
    ),
]
_CONSUMER = {"topic": ["metrics"], "group_id": "spark-archive"}


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    from monasca_common.pipeline.archive import replay_options  # which reads one of the options here

    archive = [*_ARCHIVE_OPTIONS, *consumer_options(ARCHIVE_GROUP, _CONSUMER)]
    return [(ARCHIVE_GROUP, archive), *replay_options.list_opts()]


def has_archive(conf: cfg.ConfigOpts) -> bool:
    """Whether it is said where the archive is."""
    conf.register_opts([LOCATION], group=ARCHIVE_GROUP)
    return bool(GroupReader(conf, ARCHIVE_GROUP).secret("location"))


def archive_settings(conf: cfg.ConfigOpts) -> ArchiveSettings:
    """What the job ``archive`` is made from. Raises `ConfigurationError`."""
    together = stream_settings(conf, ARCHIVE_GROUP, _ARCHIVE_OPTIONS, _CONSUMER)
    read = GroupReader(conf, ARCHIVE_GROUP)
    location = read.secret("location")
    if not location:
        raise read.error("location", "is not set, and there is no default: write an absolute path or a URI")
    return ArchiveSettings(
        streams=tuple(_of_topic(together, topic) for topic in together.consumer.topics),
        location=location,
        compression=read["compression"],
        retention_days=read["retention_days"],
    )


def _of_topic(stream: StreamSettings, topic: str) -> StreamSettings:
    return replace(stream, consumer=replace(stream.consumer, topics=(topic,)))
