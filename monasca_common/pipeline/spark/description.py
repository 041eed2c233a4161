# SPDX-License-Identifier: Apache-2.0
"""Describes the jobs of a batch in Spark's user interface and event log: its offsets or files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from monasca_common.pipeline.source.offset_store import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_PARTITIONS = 10
# The names under which Spark keeps both, for each thread.
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


@contextlib.contextmanager
def described(spark: SparkSession, batch: str, text: str) -> Iterator[None]:
    """The jobs of Spark that this thread starts within the block have the description ``text``, and the job group
    ``batch``; within another such block, until this one ends."""
    from py4j.protocol import Py4JError

    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    context.setLocalProperty(_GROUP, batch)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        # A Spark that has died must not hide the error that says so.
        with contextlib.suppress(Py4JError, OSError):
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it


def offsets_text(topic: str, ranges: Sequence[OffsetRange]) -> str:
    """``metrics, 30 offsets: 0 from 10 to 29, 1 from 5 to 14``; of many partitions the first ten."""
    filled = [each for each in sorted(ranges) if each.span]
    named = [f"{each.partition} from {each.start} to {each.end - 1}" for each in filled[:_MOST_PARTITIONS]]
    if len(filled) > _MOST_PARTITIONS:
        named.append(f"and {len(filled) - _MOST_PARTITIONS} partitions more")
    return f"{topic}, {sum(each.span for each in filled)} offsets: {', '.join(named)}"
