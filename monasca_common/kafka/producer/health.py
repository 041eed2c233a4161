# SPDX-License-Identifier: Apache-2.0
"""`ProducerHealth`: the state of a producer."""

from __future__ import annotations

import dataclasses

from monasca_common.kafka.errors import TransportError


@dataclasses.dataclass(frozen=True, slots=True)
class ProducerHealth:
    """The state of a producer. ``oldest_unacknowledged_seconds`` is the first sign that Kafka does not answer, because
    the client itself is silent for a minute.

    ``recreated_topics``: how often a topic that it writes to was found deleted and recreated.
    ``oldest_call_seconds``: how long a call of the client has not returned, 0 if there is none; ``poisoned``: one
    did not come back at its deadline. ``finished``: the client had a fatal error, or is poisoned; nothing is sent any
    more until `KafkaProducer.reopen`. ``driver``: ``native``, ``confluent`` or ``memory``.
    """

    outstanding_messages: int
    outstanding_bytes: int
    oldest_unacknowledged_seconds: float
    last_error: TransportError | None
    failed_listeners: int
    recreated_topics: int = 0
    oldest_call_seconds: float = 0.0
    poisoned: bool = False
    finished: bool = False
    driver: str = ""
