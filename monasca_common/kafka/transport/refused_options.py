# SPDX-License-Identifier: Apache-2.0
"""What librdkafka says of an option that it does not take, without the option's value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException

from monasca_common.kafka.errors import ConfigurationError

T = TypeVar("T")

_QUOTED_VALUE = re.compile(r'value (".*"|\S+) (?=for |is )', re.DOTALL)


def make_client(option: str, make: Callable[[], T]) -> T:
    """What ``make`` returns; raises `ConfigurationError` where librdkafka refuses an option.

    ``option``: where further options of this client come from, ``producer_options`` or ``consumer_options``.
    """
    try:
        return make()
    except KafkaException as error:
        reason = _QUOTED_VALUE.sub("value ", error.args[0].str().strip())
    # Outside of the handler, so that the client's own text, which may quote a value, is not part of the traceback.
    raise ConfigurationError(
        f"librdkafka refuses what {option} or the options on TLS and SASL say: {reason}; correct that option"
    )
