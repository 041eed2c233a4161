# SPDX-License-Identifier: Apache-2.0
"""Faults on demand: what the memory broker does to the n-th request of a kind instead of just serving it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import KafkaError

from monasca_common.kafka.errors import ConfigurationError

RequestKind = Literal["produce", "fetch", "commit", "committed", "metadata"]


@dataclass(frozen=True, slots=True)
class Fail:
    """The broker does nothing and answers with this error (Kafka's name for it), ``seconds`` late.

    ``fatal``: the client is finished by it, as an idempotent producer without permission is.
    """

    error: str
    seconds: float = 0.0
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """The broker does as it is asked and answers ``seconds`` late."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The broker does as it is asked, the connection breaks, and the client hears only ``seconds`` later.

    What it hears then is the answer to its retry: the success of the first attempt, for an idempotent
    producer is recognised, or ``error``. ``math.inf``: it never hears.
    """

    seconds: float = 0.1
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """The call does not come back, whatever its time-out, until `MemoryBroker.clear_faults`; then the broker does as
    it was asked. The broker serves everything else meanwhile."""


Fault = Fail | Delay | LoseAnswer | Hang


@dataclass(slots=True)
class _Rule:
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


class FaultPlan:
    """The faults that are still to come, each counting the requests that it matches from when it was added."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self.cleared = 0  # times

    def add(
        self,
        kind: RequestKind,
        fault: Fault,
        *,
        nth: int,
        count: int | None,
        topic: str | None,
        partition: int | None = None,
    ) -> None:
        if isinstance(fault, Fail | LoseAnswer) and fault.error is not None:
            raw_error(fault.error)
        last = math.inf if count is None else nth + count - 1
        self._rules.append(_Rule(kind, topic, partition, fault, nth, last))

    def take(self, kind: RequestKind, topic: str | None = None, partition: int | None = None) -> Fault | None:
        """The fault of this request, if it has one. Every rule counts the request."""
        hits = [rule.fault for rule in self._rules if rule.applies(kind, topic, partition)]
        return hits[0] if hits else None

    def __bool__(self) -> bool:
        return bool(self._rules)

    def clear(self) -> None:
        self._rules.clear()
        self.cleared += 1


def raw_error(name: str, text: str | None = None, *, fatal: bool = False) -> KafkaError:
    """The client library's error object for one of Kafka's error names."""
    code = getattr(KafkaError, name, None)
    if not isinstance(code, int):
        raise ConfigurationError(
            f"{name!r} is not a Kafka error: use the name of an attribute of confluent_kafka.KafkaError, "
            "such as 'NOT_ENOUGH_REPLICAS' or '_TRANSPORT'"
        )
    return KafkaError(code, text, fatal) if text else KafkaError(code, fatal=fatal)
