# SPDX-License-Identifier: Apache-2.0
"""One call of a user's handler: decoded on the way in, outputs identified on the way out, errors as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from monasca_common.kafka.decoding import decode
from monasca_common.kafka.message import PartitionBatch, Record
from monasca_common.kafka.outputs import Output, collect, identify
from monasca_common.kafka.serialization.base import Serializer

Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What it came to: outputs (by topic) of the first ``handled`` messages; the next ``failed`` have ``error``."""

    handled: int
    outputs: dict[str, list[Record]] = field(default_factory=dict)
    failed: int = 0
    error: Exception | None = None


class Caller:
    """Calls ``handler`` with a batch, or with its messages one by one. Only what is no `Exception` escapes."""

    def __init__(self, handler: Handler, serializer: Serializer | None, group: str, *, per_message: bool) -> None:
        self._handler = handler
        self._serializer = serializer
        self._group = group
        self._per_message = per_message

    def call(self, part: PartitionBatch, interrupted: Callable[[], bool]) -> Call:
        """``interrupted``: asked between single messages, whether to leave the rest."""
        try:
            decoded = decode(part, self._serializer)
            if self._per_message:
                return self._one_by_one(decoded, interrupted)
            return Call(len(part), identify(collect(self._handler(decoded)), part, self._group))
        except Exception as error:
            return Call(0, failed=len(part), error=error)

    def _one_by_one(self, part: PartitionBatch, interrupted: Callable[[], bool]) -> Call:
        outputs: list[Output] = []
        handled, failure = 0, None
        for message in part:
            if interrupted():
                break
            try:
                made = collect(self._handler(message))
            except Exception as error:
                failure = error
                break
            outputs += [output._replace(source=handled) for output in made]
            handled += 1
        failed = 0 if failure is None else 1
        return Call(handled, identify(outputs, part, self._group), failed, failure)
