# SPDX-License-Identifier: Apache-2.0
"""Dead letters as an operator sees them: what waits, what was dealt with, and what goes back to its topic."""

from monasca_common.operations.dead_letters.notes import DeadLetterNotes, Letter, SentMessages, is_note
from monasca_common.operations.dead_letters.replay import DeadLetterReplay

__all__ = ["DeadLetterNotes", "DeadLetterReplay", "Letter", "SentMessages", "is_note"]
