# SPDX-License-Identifier: Apache-2.0
"""Dead letters for operators: list them, replay them to their topics, delete them."""

from monasca_common.operations.dead_letters.replay import DeadLetterReplay
from monasca_common.operations.dead_letters.replay_log import (
    MAX_REPLAYS,
    Letter,
    ReplayLog,
    SentMessages,
    is_note,
)
from monasca_common.operations.dead_letters.topics import DeadLetterTopic

__all__ = [
    "MAX_REPLAYS",
    "DeadLetterReplay",
    "DeadLetterTopic",
    "Letter",
    "ReplayLog",
    "SentMessages",
    "is_note",
]
