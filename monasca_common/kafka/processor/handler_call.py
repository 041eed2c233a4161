# SPDX-License-Identifier: Apache-2.0
"""One call of a user's handler: decoded on the way in, outputs identified on the way out, errors as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from monasca_common.kafka.message import Message, PartitionBatch, Record
from monasca_common.kafka.processor.decoding import Undecodable, decode
from monasca_common.kafka.processor.outputs import Output, collect, identify
from monasca_common.kafka.serialization.base import Serializer

Outputs = Iterable[Output | tuple[str, Record | bytes]] | None

Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What it came to: outputs (by topic) of the first ``handled`` messages; the next ``failed`` have ``error``."""

    handled: int
    outputs: dict[str, list[Record]] = field(default_factory=dict)
    failed: int = 0
    error: Exception | None = None


class Caller:
    """Calls ``handler`` with a batch, or with its messages one by one.

    Raises `MisuseError` for a return value that is not an output: every message would fail by it, so none should go to
    the dead letters. Of what the handler raises, only what is not an `Exception` escapes.
    """

    def __init__(self, handler: Handler, serializer: Serializer | None, group: str, *, per_message: bool) -> None:
        self._handler = handler
        self._serializer = serializer
        self._group = group
        self._per_message = per_message

    def call(self, part: PartitionBatch, interrupted: Callable[[], bool]) -> Call:
        """``interrupted``: asked between single messages, whether to leave the rest."""
        try:
            decoded = decode(part, self._serializer)
        except Undecodable as error:
            return Call(0, failed=len(part), error=error)
        if self._per_message:
            return self._one_by_one(decoded, interrupted)
        try:
            returned = self._returned_for(decoded)
        except Exception as error:
            return Call(0, failed=len(part), error=error)
        return Call(len(part), identify(collect(returned), part, self._group))

    def _one_by_one(self, part: PartitionBatch[Any], interrupted: Callable[[], bool]) -> Call:
        outputs: list[Output] = []
        handled, failure = 0, None
        for message in part:
            if interrupted():
                break
            try:
                returned = self._returned_for(message)
            except Exception as error:
                failure = error
                break
            outputs += [output._replace(source=handled) for output in collect(returned)]
            handled += 1
        failed = 0 if failure is None else 1
        return Call(handled, identify(outputs, part, self._group), failed, failure)

    def _returned_for(self, argument: PartitionBatch[Any] | Message[Any]) -> Any:
        returned = self._handler(argument)
        # A generator's body is the handler's as well: what it raises must be caught where the handler's is.
        return list(returned) if isinstance(returned, Iterator) else returned
