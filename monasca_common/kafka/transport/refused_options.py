# SPDX-License-Identifier: Apache-2.0
"""Reports an option that librdkafka refuses, without the option's value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException

from monasca_common.kafka.errors import ConfigurationError

T = TypeVar("T")

_QUOTED_VALUE = re.compile(r'value (".*"|\S+) (?=for |is )', re.DOTALL)


def make_client(option: str, make: Callable[[], T]) -> T:
    """Return the result of ``make``; raise `ConfigurationError` if librdkafka refuses an option.

    ``option``: the source of additional options of this client, ``producer_options`` or ``consumer_options``.
    """
    try:
        return make()
    except KafkaException as error:
        reason = _QUOTED_VALUE.sub("value ", error.args[0].str().strip())
    # Raised outside the except block, so that the client's text, which can quote a value, is not in the traceback.
    raise ConfigurationError(
        f"librdkafka refuses {option} or the options for TLS and SASL: {reason}; correct that option"
    )
