# SPDX-License-Identifier: Apache-2.0
"""Values that JSON cannot express as numbers: NaN and the infinities are text, in envelopes and in responses.

The texts are those of Spark's JSON and of the JSON form of protobuf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

NAN = math.nan
GREATEST = 1.7976931348623157e308

ValueText = Literal["NaN", "Infinity", "-Infinity"]

#: All rows use the same NaN object, so that rows with NaN are equal (Python compares the identity of elements first).
BY_TEXT: Mapping[ValueText, float] = {"NaN": NAN, "Infinity": math.inf, "-Infinity": -math.inf}

#: The value_meta that marks the end of a series (Prometheus' staleness marker); the value is NaN.
STALE = {"prometheus": "stale"}
#: The double of a staleness marker in remote write, little-endian.
STALE_DOUBLE = bytes.fromhex("020000000000f07f")


def value_text(value: float) -> ValueText | None:
    """Return the text of a value that is not finite, otherwise ``None``."""
    if -GREATEST <= value <= GREATEST:
        return None
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
