# SPDX-License-Identifier: Apache-2.0
"""Specifications in the database: their rows as they were loaded, in order."""

from __future__ import annotations

import sqlalchemy as sa

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.specification.reader import JsonRows, read
from monasca_common.pipeline.specification.specification import Specifications
from monasca_common.storage.sql.tables import aggregate_specification

_PRE_TRANSFORMS, _TRANSFORMS = "pre_transform", "transform"


def store(offset_store: OffsetStore, pre_transforms: JsonRows, transforms: JsonRows) -> Specifications:
    """Replace all stored specifications by these, unless one is refused. Raises `InvalidSpecifications`."""
    given = {_PRE_TRANSFORMS: list(pre_transforms.lines), _TRANSFORMS: list(transforms.lines)}
    found = read(
        JsonRows(pre_transforms.source, given[_PRE_TRANSFORMS]),
        JsonRows(transforms.source, given[_TRANSFORMS]),
    )
    rows = [
        # Empty rows count, so that faults have the row numbers of the file.
        {"kind": kind, "row": number, "content": line if isinstance(line, str) else line.decode()}
        for kind, lines in given.items()
        for number, line in enumerate(lines, start=1)
    ]
    with offset_store.writing() as connection:
        connection.execute(aggregate_specification.delete())
        connection.execute(aggregate_specification.insert(), rows)
    return found


def stored(offset_store: OffsetStore) -> tuple[JsonRows, JsonRows]:
    """The stored rows of pre-transforms and of transforms. Raises `ConfigurationError` if there are none."""
    table = aggregate_specification.c
    query = sa.select(table.kind, table.content).order_by(table.kind, table.row)
    with offset_store.reading() as connection:
        found = connection.execute(query).all()
    if not found:
        raise ConfigurationError(
            "the database has no specifications: put them there with `monasca-common pipeline specifications load`"
        )
    pre_transforms, transforms = (
        JsonRows(f"{aggregate_specification.name} ({kind})", [row.content for row in found if row.kind == kind])
        for kind in (_PRE_TRANSFORMS, _TRANSFORMS)
    )
    return pre_transforms, transforms
