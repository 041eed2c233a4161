# SPDX-License-Identifier: Apache-2.0
"""The columns of a metric beside its message, so that readers filter by them without decoding JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from monasca_common.models import json_text

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = ("metric_name", "metric_tenant", "metric_value", "metric_dimensions")
#: Those whose values repeat.
DICTIONARIES = ["metric_name", "metric_tenant", "metric_dimensions.key_value.key", "metric_dimensions.key_value.value"]
_REFUSED = (*json_text.UNREADABLE, TypeError)
_NOTHING = (None, None, None, None)


class _ColumnsMetric(msgspec.Struct, gc=False):
    name: str
    value: float
    dimensions: dict[str, str | None] | None = None


class _ColumnsMeta(msgspec.Struct, gc=False):
    tenant: str | None = msgspec.field(default=None, name="tenantId")


class _ColumnsEnvelope(msgspec.Struct, gc=False):
    metric: _ColumnsMetric
    meta: _ColumnsMeta | None = None


_decode = msgspec.json.Decoder(_ColumnsEnvelope).decode


def parsed(values: Sequence[bytes | None]) -> dict[str, pa.Array]:
    """The columns by name; null for a message that is not a metric."""
    import pyarrow as pa

    types = (pa.string(), pa.string(), pa.float64(), pa.map_(pa.string(), pa.string()))
    columns = zip(*map(_row, values), strict=True)
    return {name: pa.array(column, type=kind) for name, column, kind in zip(NAMES, columns, types, strict=True)}


def _row(value: bytes | None) -> tuple[Any, ...]:
    try:
        envelope = _decode(value)  # type: ignore[arg-type]
    except _REFUSED:
        return _NOTHING
    metric = envelope.metric
    dimensions = [(key, text) for key, text in (metric.dimensions or {}).items() if text is not None]
    return metric.name, envelope.meta.tenant if envelope.meta else None, metric.value, dimensions
