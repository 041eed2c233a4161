# SPDX-License-Identifier: Apache-2.0
"""Looks up the components of specifications (operations, usages and setters) by their entry points, including the
components of this package. Specifications contain only names, which each process looks up. Install a package with
components on the driver and on all executors.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from monasca_common.kafka import entry_point
from monasca_common.kafka.errors import ConfigurationError

OPERATIONS = "monasca_common.pipeline.operations"
USAGES = "monasca_common.pipeline.usages"
SETTERS = "monasca_common.pipeline.setters"


@dataclass(frozen=True, slots=True)
class OperationComponent:
    """Combines quantities into one. ``fetch`` returns the quantity of a `Partial`, for ``usage_fetch_operation``.
    ``combine`` returns the combination of at least one quantity, for rollups and the second stage. If one of the
    functions is ``None``, specifications cannot use the operation for that purpose.
    """

    fetch: Callable[[Any], float] | None = None
    combine: Callable[[Sequence[float]], float] | None = None


@dataclass(frozen=True, slots=True)
class UsageComponent:
    """Computes rows from the partials of a window or of a whole period.

    ``rows`` is called with the `Transform` and a mapping of groups to `Partial`, and returns an `Aggregate`.
    ``operations``: the allowed values of ``usage_fetch_operation``, or ``None`` for all operations with ``fetch``;
    empty if the usage has none. ``parameters``: other required text fields of ``aggregation_params_map``, in
    `Transform.parameters`. ``group_by``: columns by which the usage groups in addition to those of the specification.
    ``rolls_up``: whether the usage reads ``setter_rollup_group_by_list`` itself.
    """

    rows: Callable[[Any, Mapping[Any, Any]], Any]
    operations: tuple[str, ...] | None = None
    parameters: tuple[str, ...] = ()
    group_by: tuple[str, ...] = ()
    rolls_up: bool = False


@dataclass(frozen=True, slots=True)
class SetterComponent:
    """Changes the rows of a usage. The setters of a specification are applied in the listed order. ``rows`` is called
    with the `Transform` and the rows, each a `Usage`, and returns the rows that replace them. ``parameters``: see
    `UsageComponent`.
    """

    rows: Callable[[Any, Sequence[Any]], Iterable[Any]]
    parameters: tuple[str, ...] = ()


def operation(name: str) -> OperationComponent:
    """Return the operation with this name. Raises `ConfigurationError`, which lists the known names."""
    return entry_point(OPERATIONS, name, option="operation", extra="spark")  # type: ignore[no-any-return]


def usage(name: str) -> UsageComponent:
    """Return the usage with this name. Raises `ConfigurationError`, which lists the known names."""
    return entry_point(USAGES, name, option="usage", extra="spark")  # type: ignore[no-any-return]


def setter(name: str) -> SetterComponent:
    """Return the setter with this name. Raises `ConfigurationError`, which lists the known names."""
    return entry_point(SETTERS, name, option="setter", extra="spark")  # type: ignore[no-any-return]


@lru_cache
def names(namespace: str) -> tuple[str, ...]:
    """Return the installed names. Cached, because a search of all packages takes about 50 ms."""
    return tuple(sorted(importlib.metadata.entry_points(group=namespace).names))


def check(load: Callable[[str], Any], namespace: str, name: object, fits: Callable[[Any], object] = bool) -> str:
    """Return the name of an installed component that ``fits``. Raises `ValueError`, which states the rule."""
    if isinstance(name, str) and name in names(namespace):
        try:
            found = load(name)
        except ConfigurationError as error:
            raise ValueError(f"cannot be used: {error}") from error
        if fits(found):
            return name
    known = [one for one in names(namespace) if _fits(load, one, fits)]
    choices = ", ".join(known) or f"(none is installed as an entry point of {namespace}: reinstall the package)"
    raise ValueError(f"must be one of {choices}, not {name!r}")


def _fits(load: Callable[[str], Any], name: str, fits: Callable[[Any], object]) -> bool:
    try:
        return bool(fits(load(name)))
    except ConfigurationError:  # skip the error of a broken package that the specification does not use
        return False
