# SPDX-License-Identifier: Apache-2.0
"""A logger for threads that must continue even if the application's log handlers raise."""

from __future__ import annotations

import contextlib
import logging
from typing import Any


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """Suppresses all exceptions from log handlers; `logging` suppresses only exceptions that a handler reports
    itself."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})
