# SPDX-License-Identifier: Apache-2.0
"""What a handler returns, and ids for it that a repeat after a crash makes again."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from monasca_common.kafka.errors import MisuseError
from monasca_common.kafka.message import PartitionBatch, Record


class Output(NamedTuple):
    """One record for ``topic``. A bare ``(topic, record)`` stands for an output without a source.

    ``source``: the position in the batch of the message it was made from. With it (and always in a
    handler of single messages) a repeat gets the same id however the messages are batched by then.
    """

    topic: str
    record: Record | bytes
    source: int | None = None


def collect(returned: Any) -> list[Output]:
    """The outputs in what a handler returned: nothing, or an iterable of `Output` or ``(topic, record)``."""
    if returned is None:
        return []
    if inspect.iscoroutine(returned):
        returned.close()  # or Python warns that it was never awaited
    if isinstance(returned, str | bytes | Record) or not isinstance(returned, Iterable):
        raise MisuseError(
            f"a handler returned {type(returned).__name__}: return None, or an iterable of (topic, record)"
        )
    return [_output(item) for item in returned]


def _output(item: Any) -> Output:
    if not isinstance(item, tuple) or len(item) not in (2, 3):
        raise MisuseError(f"a handler returned an output of type {type(item).__name__}: return (topic, record) tuples")
    output = Output(*item)
    if not isinstance(output.topic, str) or not isinstance(output.record, Record | bytes):
        raise MisuseError(
            f"a handler returned ({type(output.topic).__name__}, {type(output.record).__name__}): "
            "return (str, Record or bytes) tuples"
        )
    return output


def identify(outputs: list[Output], part: PartitionBatch, group: str) -> dict[str, list[Record]]:
    """The records by topic, each with a message id that depends on its input alone, unless it has one already.

    With a source: ``group/topic/partition/offset/n``, the n-th output of that message. Without one, as many
    outputs as messages are taken to belong to them one by one; a digest of the content in the id keeps a wrong
    guess from giving two different records one id, which would lose one of them. Else the id has the batch's bounds.
    """
    name, number = part.topic_partition
    origin = f"{group}/{name}/{number}"
    offsets = part.offsets
    one_to_one = len(outputs) == len(offsets)
    made: Counter[str] = Counter()
    records: dict[str, list[Record]] = {}
    for position, (topic, item, source) in enumerate(outputs):
        record = item if isinstance(item, Record) else Record(item)
        if not record.message_id:
            if source is not None:
                anchor = f"{origin}/{_sourced(source, offsets)}"
            elif one_to_one:
                anchor = f"{origin}/{offsets[position]}/{_digest(topic, record)}"
            else:
                anchor = f"{origin}/{offsets[0]}-{offsets[-1]}"
            record = replace(record, message_id=f"{anchor}/{made[anchor]}".encode())
            made[anchor] += 1
        records.setdefault(topic, []).append(record)
    return records


def _sourced(source: int, offsets: list[int]) -> int:
    if not 0 <= source < len(offsets):
        raise MisuseError(f"an output names source {source} of a batch of {len(offsets)}: positions start at 0")
    return offsets[source]


def _digest(topic: str, record: Record) -> str:
    content = repr((topic, record.key, record.value, record.headers))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
