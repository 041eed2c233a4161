# SPDX-License-Identifier: Apache-2.0
"""The time limits of a stop: of a client, and of a process with consumers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from monasca_common.kafka.settings import ConsumerSettings

#: The time-out for closing a client. Messages that must arrive are flushed, stored or in a journal before.
CLOSE_SECONDS = 1.0
# In addition to the time-out of the members: their clients close, and the parent detects the end.
_LEAVE_SECONDS = 5


def grace_seconds(consumers: Iterable[ConsumerSettings]) -> int:
    """Return the time after which the stopping process of these consumers is killed."""
    return math.ceil(max(each.stop_timeout_seconds for each in consumers)) + _LEAVE_SECONDS
