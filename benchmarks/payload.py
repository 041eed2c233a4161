# SPDX-License-Identifier: Apache-2.0
"""Messages of 250 bytes that look, and compress, like metrics."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

MESSAGE_BYTES = 250
_DIFFERENT = 1000


def _metric(number: int) -> bytes:
    metric = {
        "name": f"cpu.user_perc.{number % 10}",
        "dimensions": {"hostname": f"compute-{number * 7919 % 1000:03}.example.org", "service": "nova"},
        "timestamp": 1_760_000_000_000 + number * 997,
        "value": round(number * 0.61803 % 100, 3),
    }
    envelope = {
        "metric": metric,
        "meta": {"tenantId": f"{number * 2654435761 % 2**32:08x}", "region": "RegionOne"},
        "note": "",
    }
    envelope["note"] = "-" * (MESSAGE_BYTES - len(json.dumps(envelope)))
    return json.dumps(envelope).encode()


VALUES = tuple(_metric(number) for number in range(_DIFFERENT))


def values(count: int) -> Iterator[bytes]:
    return itertools.islice(itertools.cycle(VALUES), count)
