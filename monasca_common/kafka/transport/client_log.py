# SPDX-License-Identifier: Apache-2.0
"""What librdkafka has to say, to Python's logging, and not over and over."""

from __future__ import annotations

import logging
import re

from monasca_common.kafka.clock import Clock

REPEAT_SECONDS = 30.0

_DIFFERENT_EACH_TIME = re.compile(r"\d+ms|, \d+ identical error\(s\) suppressed")


class ClientLog:
    """Stands where confluent-kafka wants a logger. The same complaint, however long it took, is passed on once in
    `REPEAT_SECONDS`, with how often it came: a client whose brokers are all away complains up to twenty times a second.
    """

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._said: dict[str, float] = {}
        self._kept_back: dict[str, int] = {}

    def log(self, level: int, text: str, *arguments: object) -> None:
        message = text % arguments if arguments else text
        complaint = _DIFFERENT_EACH_TIME.sub("", message)
        now = self._clock.monotonic()
        self._said = {known: at for known, at in self._said.items() if now < at + REPEAT_SECONDS}
        if complaint in self._said:
            self._kept_back[complaint] = self._kept_back.get(complaint, 0) + 1
            return
        self._said[complaint] = now
        kept_back = self._kept_back.pop(complaint, 0)
        more = f" (and {kept_back} times since this was logged last)" if kept_back else ""
        self._logger.log(level, "%s%s", message, more)
