# SPDX-License-Identifier: Apache-2.0
"""Passes librdkafka's log lines to Python's logging, and suppresses repetitions."""

from __future__ import annotations

import contextlib
import logging
import re

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.log_limit import LogLimit

_DIFFERENT_EACH_TIME = re.compile(r"\d+ms|, \d+ identical error\(s\) suppressed")


class ClientLog:
    """A logger for confluent-kafka. It logs equal lines once every 30 seconds, with their count, because a client whose
    brokers are all down logs up to twenty lines a second.
    """

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._limit = LogLimit(clock)

    def log(self, level: int, text: str, *arguments: object) -> None:
        message = text % arguments if arguments else text
        more = self._limit.admit(_DIFFERENT_EACH_TIME.sub("", message))
        if more is not None:
            with contextlib.suppress(Exception):  # an error in a log handler must not hide outcomes of the same call
                self._logger.log(level, "%s%s", message, more)
