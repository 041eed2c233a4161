# SPDX-License-Identifier: Apache-2.0
"""What librdkafka has to say, to Python's logging, and not over and over."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from monasca_common.kafka.clock import Clock

REPEAT_SECONDS = 30.0
_FORGET_SECONDS = 600.0

_DIFFERENT_EACH_TIME = re.compile(r"\d+ms|, \d+ identical error\(s\) suppressed")


class ClientLog:
    """Stands where confluent-kafka wants a logger. The same complaint, however long it took, is passed on once in
    `REPEAT_SECONDS`, with how often it came: a client whose brokers are all away complains up to twenty times a second.
    """

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._said: dict[str, _Said] = {}

    def log(self, level: int, text: str, *arguments: object) -> None:
        message = text % arguments if arguments else text
        complaint = _DIFFERENT_EACH_TIME.sub("", message)
        now = self._clock.monotonic()
        self._said = {known: said for known, said in self._said.items() if now < said.at + _FORGET_SECONDS}
        said = self._said.get(complaint)
        if said is not None and now < said.at + REPEAT_SECONDS:
            said.kept_back += 1
            return
        self._said[complaint] = _Said(now)
        more = f" (and {said.kept_back} times since this was logged last)" if said and said.kept_back else ""
        self._logger.log(level, "%s%s", message, more)


@dataclass(slots=True)
class _Said:
    """When it was logged last, and how often it came since."""

    at: float
    kept_back: int = 0
