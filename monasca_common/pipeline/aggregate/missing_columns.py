# SPDX-License-Identifier: Apache-2.0
"""Warns of a column by which a specification is grouped, but which no metric of a batch has: it is NA in all rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from monasca_common.pipeline.aggregate import usage_table
from monasca_common.pipeline.specification import columns
from monasca_common.pipeline.specification.specification import Specifications, Transform

LOG = logging.getLogger(__name__)


class MissingColumns:
    """Looks at the first batch that has records of a specification; later batches cost nothing."""

    def __init__(self, specifications: Specifications) -> None:
        self._specifications = specifications
        self._seen: set[str] = set()

    def check(
        self, connection: sa.Connection, batch: str, attempts: Sequence[int], specification_ids: Iterable[str]
    ) -> None:
        for each in sorted({*specification_ids} - self._seen):
            self._seen.add(each)
            transform = self._specifications.find(each)
            if transform is not None:
                self._check(connection, batch, attempts, transform)

    def _check(self, connection: sa.Connection, batch: str, attempts: Sequence[int], transform: Transform) -> None:
        for position, column in enumerate(transform.group_by):
            if column not in columns.CONSTANT and not usage_table.has_value(
                connection, batch, attempts, transform.id, position, columns.NA
            ):
                remedy = f"; for a dimension of this name write dimensions#{column}" if column in columns.PLACES else ""
                LOG.warning(
                    "%s is grouped by %s, but no metric of this batch has %s: the column is %s in all rows%s",
                    transform.metric_id,
                    column,
                    columns.places(column),
                    columns.NA,
                    remedy,
                )
