# SPDX-License-Identifier: Apache-2.0
"""Which choices a processor's caller may combine."""

from __future__ import annotations

from monasca_common.kafka.dead_letter import DeadLetters
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.producer import KafkaProducer


def check_choices(
    producer: KafkaProducer | None,
    dead_letters: DeadLetters | None,
    order: str,
    threads: int,
    *,
    transactional: bool,
) -> None:
    """Raises `ConfigurationError` with the remedy for the first rule that is broken."""
    rules = (
        (order in ("partition", "key"), f"order={order!r}: it is 'partition' or 'key'"),
        (threads >= 1, f"threads={threads}: at least 1 must call the handler"),
        (
            dead_letters is None or producer is not None,
            "dead_letters without a producer: give it one to send them with",
        ),
        (not transactional or producer is not None, "transactional without a producer: give it a transactional one"),
        (
            producer is None or transactional == (producer.settings.transactional_id is not None),
            "transactional and the producer's transactional_id go together: give both, or neither",
        ),
        (
            not (transactional and order == "key"),
            "transactional with order='key': offsets in a transaction must not skip; use order='partition'",
        ),
    )
    for holds, remedy in rules:
        if not holds:
            raise ConfigurationError(f"Processor: {remedy}")
