# SPDX-License-Identifier: Apache-2.0
"""Classes for the rows of the two specification files, which `reader` creates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from monasca_common.models import json_text
from monasca_common.pipeline.patterns import Pattern
from monasca_common.pipeline.specification import columns

FETCH_QUANTITY_UTIL = "fetch_quantity_util"
CALCULATE_RATE = "calculate_rate"
RATE = "rate"
QUANTITY_EVENT_TYPE = "usage_fetch_util_quantity_event_type"
IDLE_EVENT_TYPE = "usage_fetch_util_idle_perc_event_type"


@dataclass(frozen=True, slots=True)
class PreTransform:
    """Selects records of one event type (a metric's name) for transforms. ``required``: ``dimensions#x``, ``meta#x``,
    ``value_meta#x`` or a member of the envelope; null and empty values count as missing. A default replaces a value
    that is missing in the envelope's meta; without a default, the value is `columns.NA`.
    """

    event_type: str
    metric_ids: tuple[str, ...]
    required: tuple[str, ...]
    default_zone: str = columns.NA
    default_geolocation: str = columns.NA
    default_region: str = columns.NA


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps records whose ``column`` contains a match of the pattern or, if ``include`` is False, contains none. A
    missing column has the value ``NA``.
    """

    column: str
    pattern: Pattern
    include: bool

    def keeps(self, value: str) -> bool:
        return self.pattern.is_in(value) == self.include


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of the output; ``key`` gets the value of the usage's ``column``."""

    key: str
    column: str


@dataclass(frozen=True, slots=True)
class Transform:
    """The aggregation of the records of one metric id.

    ``group_by``: the columns of the partials' groups, in order. ``operation`` turns a partial into a quantity (``None``
    for a rate). ``rollup_operation``: ``None`` without a rollup. ``second_operation`` combines the rolled-up rows of a
    period's windows; ``None`` if the windows are merged first. ``parameters``: the parameters of its usage and setters.
    ``id``: the metric id and a digest of everything that determines the records of its partials, so that partials of
    different layouts are never mixed.
    """

    metric_id: str
    usage: str
    name: str
    period: str
    group_by: tuple[str, ...]
    operation: str | None
    filters: tuple[Filter, ...]
    rollup_by: tuple[str, ...]
    rollup_operation: str | None
    dimensions: tuple[Dimension, ...]
    second_by: tuple[str, ...]
    second_operation: str | None
    setters: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    id: str = ""

    @property
    def distinguishes(self) -> set[str]:
        """Return the columns that can differ between two output rows of one period."""
        differing = set(self.group_by) - {"metric_id"}
        if self.usage == FETCH_QUANTITY_UTIL:
            differing.discard("event_type")
        if self.usage == CALCULATE_RATE or self.rollup_operation:
            differing &= set(self.rollup_by)
        if self.second_operation:
            differing &= set(self.second_by)
        return differing


@dataclass(frozen=True, slots=True)
class Specifications:
    """All rows of one set of specifications. ``warnings``: descriptions of contents that are valid but probably
    mistakes."""

    pre_transforms: tuple[PreTransform, ...]
    transforms: Mapping[str, Transform]  # transforms by metric id
    warnings: tuple[str, ...] = ()
    _by_id: Mapping[str, Transform] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {transform.id: transform for transform in self.transforms.values()})

    @property
    def outputs(self) -> frozenset[str]:
        """Return the names of aggregates, which are never input, although they are published to the input topic."""
        return frozenset(transform.name for transform in self.transforms.values())

    def find(self, specification_id: str) -> Transform | None:
        """Return the transform with this id, or ``None`` for an id of an earlier configuration."""
        return self._by_id.get(specification_id)


@dataclass(frozen=True, slots=True)
class Publisher:
    """The publisher of the output: the job's name, and the tenant and region of its envelopes."""

    job: str
    tenant: str
    region: str


def specification_id(transform: Transform, feeding: tuple[PreTransform, ...]) -> str:
    """Return the id of a transform, such as ``mem_total_all@`` and 12 hexadecimal digits."""
    shape = (
        transform.period,
        transform.group_by,
        sorted((kept.column, kept.pattern.text, kept.include) for kept in transform.filters),
        sorted(
            (row.event_type, sorted(row.required), row.default_zone, row.default_geolocation, row.default_region)
            for row in feeding
        ),
    )
    return f"{transform.metric_id}@{hashlib.sha256(json_text.write(shape)).hexdigest()[:12]}"
