# SPDX-License-Identifier: Apache-2.0
"""How long a stop may take: of a client, and of a process with consumers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from monasca_common.kafka.settings import ConsumerSettings

#: The wait for a client to close. What has to arrive was flushed, stored or kept in a journal before.
CLOSE_SECONDS = 1.0
# In addition to the stop of the members: for their clients to close, and for the parent to notice.
_LEAVE_SECONDS = 5


def grace_seconds(consumers: Iterable[ConsumerSettings]) -> int:
    """Return how long the process of these consumers may take to stop before it is killed."""
    return math.ceil(max(each.stop_timeout_seconds for each in consumers)) + _LEAVE_SECONDS
