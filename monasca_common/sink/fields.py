# SPDX-License-Identifier: Apache-2.0
"""Reads the fields at paths of decoded values, column by column."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from monasca_common.kafka.serialization.base import Serializer
from monasca_common.kafka.serialization.json import JsonSerializer

Steps = tuple[str | int, ...]
Columns = Mapping[Steps, Sequence[Any]]
# The base of types of JSON objects that have only the fields at paths: creating one takes half the time of a dict.
_Fields = msgspec.defstruct("_Fields", [])


def loads_of(serializer: Serializer, paths: Collection[Steps]) -> Callable[..., Any]:
    """Return a function that decodes at least the fields at ``paths``. It skips the other fields of JSON, if the paths
    consist of plain names and no path begins with another."""
    inner = {steps[:depth] for steps in paths for depth in range(len(steps))}
    is_plain = all(isinstance(at, str) and at.isidentifier() and at[0] != "_" for steps in paths for at in steps)
    if type(serializer) is not JsonSerializer or not is_plain or not inner.isdisjoint(paths):
        return serializer.loads
    decode = msgspec.json.Decoder(_type_of(paths)).decode

    def loads(value: bytes) -> Any:
        try:
            return decode(value.decode())  # because msgspec does not check the UTF-8 of skipped fields
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return serializer.loads(value)  # another shape, or not JSON

    return loads


def _type_of(paths: Collection[Steps]) -> Any:
    if () in paths:
        return Any
    names = dict.fromkeys(str(steps[0]) for steps in paths)
    fields = [(name, _type_of([steps[1:] for steps in paths if steps[0] == name]), None) for name in names]
    return msgspec.defstruct("Fields", fields, bases=(_Fields,), gc=False) | None


def columns_at(paths: Iterable[Steps], values: Sequence[Any]) -> Columns:
    """Return a column for each path, with ``None`` for values that lack the path."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and issubclass(kinds.pop(), _Fields):
        with contextlib.suppress(AttributeError):  # an object is missing or null
            return {steps: list(map(attrgetter(".".join(map(str, steps))), values)) for steps in paths}
    columns: dict[Steps, Sequence[Any]] = {(): values}
    for steps in paths:
        for depth in range(len(steps)):
            if steps[: depth + 1] not in columns:
                columns[steps[: depth + 1]] = _members(columns[steps[:depth]], steps[depth])
    return columns


def _members(values: Sequence[Any], step: str | int) -> Sequence[Any]:
    if set(map(type, values)) == {dict}:
        with contextlib.suppress(KeyError):
            return list(map(itemgetter(step), values))
    return [_member(value, step) for value in values]


def _member(value: Any, step: str | int) -> Any:
    if isinstance(value, _Fields):
        return getattr(value, str(step))
    if isinstance(value, Mapping):
        with contextlib.suppress(TypeError, ValueError):  # a Protobuf map raises these errors for a key of another type
            return value.get(step)
        return None
    if isinstance(step, int):
        is_array = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return value[step] if is_array and step < len(value) else None
    if type(value).__module__ == "builtins" or step.startswith("_"):
        return None
    has_field = getattr(value, "HasField", None)  # Protobuf returns a default for a field that is not set
    try:
        return getattr(value, step, None) if has_field is None or has_field(step) else None
    except ValueError:  # the presence of this field is not tracked
        return getattr(value, step, None)
