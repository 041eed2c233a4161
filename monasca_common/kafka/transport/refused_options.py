# SPDX-License-Identifier: Apache-2.0
"""What librdkafka says of an option that it does not take, without the option's value."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from confluent_kafka import KafkaException

from monasca_common.kafka.errors import ConfigurationError

_QUOTED_VALUE = re.compile(r'value (".*"|\S+) (?=for |is )', re.DOTALL)


@contextlib.contextmanager
def naming_refused_options(option: str) -> Iterator[None]:
    """Around the making of a client: a refusal becomes a `ConfigurationError`.

    ``option``: where further options of this client come from, ``producer_options`` or ``consumer_options``.
    """
    refused = None
    try:
        yield
    except KafkaException as error:
        reason = _QUOTED_VALUE.sub("value ", error.args[0].str().strip())
        refused = ConfigurationError(
            f"librdkafka refuses what {option} or the options on TLS and SASL say: {reason}; correct that option"
        )
    # Outside of the handler, so that the client's own text, which may quote a value, is no part of the traceback.
    if refused is not None:
        raise refused
