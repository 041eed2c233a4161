# SPDX-License-Identifier: Apache-2.0
"""Decodes values for a handler; one bad value does not affect the others."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from monasca_common.kafka.errors import SerializationError
from monasca_common.kafka.message import Message, PartitionBatch
from monasca_common.kafka.serialization.base import Serializer


class DecodedBatch(PartitionBatch[Any]):
    """A `PartitionBatch` whose values, and those of its messages, are decoded. No value (``None``) stays ``None``."""

    __slots__ = ()
    values: list[Any]

    def __init__(self, part: PartitionBatch, values: Sequence[Any]) -> None:
        super().__init__(part.topic_partition, part.epoch, part._raw, part.start_offset, part.next_offset)
        self.values = list(values)

    def message(self, index: int) -> Message[Any]:
        return replace(super().message(index), value=self.values[index])

    def slice(self, start: int, stop: int) -> DecodedBatch:
        return DecodedBatch(super().slice(start, stop), self.values[start:stop])

    def select(self, indices: Sequence[int]) -> DecodedBatch:
        return DecodedBatch(super().select(indices), [self.values[index] for index in indices])

    def without(self, indices: Container[int]) -> DecodedBatch:
        left = [value for index, value in enumerate(self.values) if index not in indices]
        return DecodedBatch(super().without(indices), left)


class Undecodable(Exception):
    """Some values of a batch cannot be decoded: the error of each position."""

    def __init__(self, errors: dict[int, SerializationError]) -> None:
        super().__init__(f"{len(errors)} values cannot be decoded")
        self.errors = errors


def decode(part: PartitionBatch, serializer: Serializer | None) -> PartitionBatch[Any]:
    """What the handler is given. Raises `Undecodable`; then nothing was handed to anybody."""
    if serializer is None:
        return part
    values: list[Any] = []
    errors: dict[int, SerializationError] = {}
    for index, value in enumerate(part.values):
        try:
            values.append(None if value is None else serializer.loads(value))
        except SerializationError as error:
            errors[index] = error
    if errors:
        raise Undecodable(errors)
    return DecodedBatch(part, values)
