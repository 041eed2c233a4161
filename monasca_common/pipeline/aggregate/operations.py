# SPDX-License-Identifier: Apache-2.0
"""The operations of this package, each an entry point of ``monasca_common.pipeline.operations``."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, inf

from monasca_common.pipeline.components import OperationComponent


def total(quantities: Sequence[float]) -> float:
    try:
        return fsum(quantities)
    except OverflowError:
        return inf


SUM = OperationComponent(lambda partial: partial.sum, total)
MAX = OperationComponent(lambda partial: partial.greatest, max)
MIN = OperationComponent(lambda partial: partial.least, min)
AVG = OperationComponent(lambda partial: partial.average, lambda quantities: total(quantities) / len(quantities))
LATEST = OperationComponent(lambda partial: partial.latest.quantity)
OLDEST = OperationComponent(lambda partial: partial.oldest.quantity)
