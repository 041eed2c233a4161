# SPDX-License-Identifier: Apache-2.0
"""Dead letters for operators: list, replay and delete them."""

from monasca_common.operations.dead_letters.replay import DeadLetterReplay
from monasca_common.operations.dead_letters.replay_log import (
    MAX_REPLAYS,
    DeadLetter,
    ReplayLog,
    SentMessages,
    is_note,
)
from monasca_common.operations.dead_letters.topics import DeadLetterTopic, dead_letter_topics

__all__ = [
    "MAX_REPLAYS",
    "DeadLetter",
    "DeadLetterReplay",
    "DeadLetterTopic",
    "ReplayLog",
    "SentMessages",
    "dead_letter_topics",
    "is_note",
]
