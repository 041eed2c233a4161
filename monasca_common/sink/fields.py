# SPDX-License-Identifier: Apache-2.0
"""Reads the fields at paths of decoded values, column by column."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

Steps = tuple[str | int, ...]
Columns = Mapping[Steps, Sequence[Any]]


def columns_at(paths: Iterable[Steps], values: Sequence[Any]) -> Columns:
    """Return a column for each path and each of its prefixes, with ``None`` for values that lack the path."""
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
