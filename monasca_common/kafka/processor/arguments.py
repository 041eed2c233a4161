# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of a `Processor` at its construction; an error names the remedy."""

from __future__ import annotations

import inspect

from monasca_common.kafka.errors import ConfigurationError, WrongType
from monasca_common.kafka.processor.dead_letters import DeadLetters
from monasca_common.kafka.processor.handler_call import Handler
from monasca_common.kafka.producer.producer import KafkaProducer


def check_handler(handler: Handler) -> None:
    """Raise `WrongType` for an asyncio handler, because calling it does not run it."""
    called = type(handler).__call__ if not inspect.isroutine(handler) and callable(handler) else handler
    for function in (handler, called):
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise WrongType(
                "Processor: the handler is an async def, and handlers run on threads, so that its body would never "
                "run: give a plain def, which may call asyncio.run"
            )


def check_arguments(
    producer: KafkaProducer | None,
    dead_letters: DeadLetters | None,
    order: str,
    threads: int,
    *,
    transactional: bool,
    accounts: bool,
) -> None:
    """Raise `ConfigurationError` with the remedy for the first broken rule."""
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
        (
            not (accounts and (order == "key" or transactional)),
            "accounted with order='key' or transactional: a position kept elsewhere follows a whole partition, alone",
        ),
    )
    for holds, remedy in rules:
        if not holds:
            raise ConfigurationError(f"Processor: {remedy}")
