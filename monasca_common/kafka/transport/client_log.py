# SPDX-License-Identifier: Apache-2.0
"""What librdkafka has to say, to Python's logging, and not over and over."""

from __future__ import annotations

import contextlib
import logging
import re

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.log_limit import LogLimit

_DIFFERENT_EACH_TIME = re.compile(r"\d+ms|, \d+ identical error\(s\) suppressed")


class ClientLog:
    """Stands where confluent-kafka wants a logger. The same complaint, however long it took, is passed on once in
    30 seconds, with how often it came: a client whose brokers are all down complains up to twenty times a second.
    """

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._limit = LogLimit(clock)

    def log(self, level: int, text: str, *arguments: object) -> None:
        message = text % arguments if arguments else text
        more = self._limit.admit(_DIFFERENT_EACH_TIME.sub("", message))
        if more is not None:
            with contextlib.suppress(Exception):  # of a log handler; the outcomes that the same call brought count
                self._logger.log(level, "%s%s", message, more)
