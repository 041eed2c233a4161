# SPDX-License-Identifier: Apache-2.0
"""Specifications in the database: their rows as they were given, in order."""

from __future__ import annotations

import sqlalchemy as sa

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.ledger import Ledger
from monasca_common.pipeline.specification import Specifications
from monasca_common.pipeline.specification_reader import Rows, read
from monasca_common.storage.tables import aggregate_specification

_PRE_TRANSFORMS, _TRANSFORMS = "pre_transform", "transform"


def store(ledger: Ledger, pre_transforms: Rows, transforms: Rows) -> Specifications:
    """Put these in the place of all that is there, unless one is refused. Raises `InvalidSpecifications`."""
    given = {_PRE_TRANSFORMS: list(pre_transforms.lines), _TRANSFORMS: list(transforms.lines)}
    found = read(
        Rows(pre_transforms.source, given[_PRE_TRANSFORMS]),
        Rows(transforms.source, given[_TRANSFORMS]),
    )
    rows = [
        # With the empty ones, so that faults name the rows of the file.
        {"kind": kind, "row": number, "content": line if isinstance(line, str) else line.decode()}
        for kind, lines in given.items()
        for number, line in enumerate(lines, start=1)
    ]
    with ledger.writing() as connection:
        connection.execute(aggregate_specification.delete())
        connection.execute(aggregate_specification.insert(), rows)
    return found


def stored(ledger: Ledger) -> tuple[Rows, Rows]:
    """Of pre-transforms and of transforms. Raises `ConfigurationError` where there are none."""
    table = aggregate_specification.c
    query = sa.select(table.kind, table.content).order_by(table.kind, table.row)
    with ledger.reading() as connection:
        found = connection.execute(query).all()
    if not found:
        raise ConfigurationError(
            "the database has no specifications: put them there with `monasca-common pipeline specifications load`"
        )
    pre_transforms, transforms = (
        Rows(f"{aggregate_specification.name} ({kind})", [row.content for row in found if row.kind == kind])
        for kind in (_PRE_TRANSFORMS, _TRANSFORMS)
    )
    return pre_transforms, transforms
