# SPDX-License-Identifier: Apache-2.0
"""Fault injection: the faults that the memory broker applies to the n-th request of a kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from confluent_kafka import KafkaError

from monasca_common.kafka.errors import ConfigurationError

RequestKind = Literal["produce", "fetch", "commit", "committed", "metadata"]


@dataclass(frozen=True, slots=True)
class Fail:
    """The broker does not execute the request and returns ``error`` (Kafka's name for the error), ``seconds`` late.

    ``fatal``: whether the client cannot continue, like an idempotent producer without permission.
    """

    error: str
    seconds: float = 0.0
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """The broker executes the request and responds ``seconds`` late."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The broker executes the request, the connection breaks, and the client gets the response to its retry ``seconds``
    later.

    This response has ``error``, or else reports the success of the first attempt, because the broker recognizes an
    idempotent producer. With ``math.inf`` seconds, the client never gets a response.
    """

    seconds: float = 0.1
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """The call ignores its time-out and returns only after `MemoryBroker.clear_faults` is called; then the broker
    executes the request. In the meantime the broker serves other requests."""


Fault = Fail | Delay | LoseAnswer | Hang


@dataclass(slots=True)
class FaultRule:
    """A fault for the matching requests from number ``first`` to ``last`` since it was injected."""

    kind: RequestKind
    topic: str | None
    partition: int | None
    fault: Fault
    first: int
    last: float
    seen: int = 0

    def applies(self, kind: RequestKind, topic: str | None, partition: int | None) -> bool:
        if kind != self.kind or self.topic not in (None, topic) or self.partition not in (None, partition):
            return False
        self.seen += 1
        return self.first <= self.seen <= self.last


def raw_error(name: str, text: str | None = None, *, fatal: bool = False) -> KafkaError:
    """Return the client library's error object for the name of a Kafka error."""
    code = getattr(KafkaError, name, None)
    if not isinstance(code, int):
        raise ConfigurationError(
            f"{name!r} is not a Kafka error: use the name of an attribute of confluent_kafka.KafkaError, "
            "such as 'NOT_ENOUGH_REPLICAS' or '_TRANSPORT'"
        )
    return KafkaError(code, text, fatal) if text else KafkaError(code, fatal=fatal)
