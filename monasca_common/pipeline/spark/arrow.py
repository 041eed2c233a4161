# SPDX-License-Identifier: Apache-2.0
"""Converts rows to the Arrow batches that executors exchange with Spark."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monasca_common.pipeline.errors import Rejection

if TYPE_CHECKING:
    import pyarrow as pa

#: Name and kind of each column.
Columns = tuple[tuple[str, str], ...]
#: A function for ``DataFrame.mapInArrow``.
ArrowFunction = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
#: Called with a partition and its rejected messages by offset. When it returns, they are accounted for.
OnRejected = Callable[[int, Mapping[int, Rejection]], None]


def ddl(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


@functools.lru_cache(maxsize=8)
def arrow_schema(columns: Columns) -> pa.Schema:
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<double>": pa.list_(pa.float64()),
        "map<string, string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in columns])


def numbers(batch: pa.RecordBatch, name: str) -> Sequence[int]:
    return batch.column(name).to_numpy().tolist()  # type: ignore[no-any-return]


def report_rejected(
    on_rejected: OnRejected, partitions: Sequence[int], offsets: Sequence[int], rejected: Mapping[int, Rejection]
) -> int:
    """Report rejections: for a message with several envelopes, only the first. Return the number of messages."""
    found: dict[int, dict[int, Rejection]] = {}
    for index, rejection in rejected.items():
        found.setdefault(partitions[index], {}).setdefault(offsets[index], rejection)
    for partition, of_partition in found.items():
        on_rejected(partition, of_partition)
    return sum(map(len, found.values()))


def row_batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema, size: int = 10_000) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    left = iter(rows)
    while some := list(itertools.islice(left, size)):
        columns = zip(zip(*some, strict=True), schema, strict=True)
        yield pa.record_batch([pa.array(column, type=field.type) for column, field in columns], schema=schema)
