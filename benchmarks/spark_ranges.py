# SPDX-License-Identifier: Apache-2.0
"""A backlog in two parts: a tenth that warms up, and the rest that is measured."""

from __future__ import annotations

from collections.abc import Mapping

from monasca_common.pipeline.ledger import OffsetRange
from monasca_common.pipeline.topic_view import Extent


def parts(extents: Mapping[int, Extent]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    tenth = [OffsetRange(number, 0, extent.end // 10) for number, extent in sorted(extents.items())]
    rest = [OffsetRange(number, extent.end // 10, extent.end) for number, extent in sorted(extents.items())]
    return tenth, rest
