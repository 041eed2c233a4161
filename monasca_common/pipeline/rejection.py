# SPDX-License-Identifier: Apache-2.0
"""The reason why a message is rejected and becomes a dead letter."""

from __future__ import annotations

from dataclasses import dataclass

MALFORMED, TOO_NEW, TOO_OLD = "malformed", "too_new", "too_old"


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why a message is rejected. ``kind``: `MALFORMED`, `TOO_NEW` or `TOO_OLD`.

    ``reason`` names the field and the rule, without quoting a value.
    """

    kind: str
    reason: str
