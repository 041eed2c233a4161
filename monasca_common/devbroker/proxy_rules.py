# SPDX-License-Identifier: Apache-2.0
"""What a proxy does to requests and answers on purpose.

A `Fault` is the rule and never changes; an `ActiveFault` is a rule at work and counts what it did.
"""

import asyncio
import enum
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypedDict, Unpack

from monasca_common.devbroker.framing import KafkaRequest


class Effect(enum.Enum):
    DELAY_REQUEST = "delay request"
    DROP_REQUEST = "drop request"
    CUT_REQUEST = "cut request"
    DELAY_ANSWER = "delay answer"
    DROP_ANSWER = "drop answer"
    CUT_ANSWER = "cut answer"

    @property
    def on_answer(self) -> bool:
        return self in (Effect.DELAY_ANSWER, Effect.DROP_ANSWER, Effect.CUT_ANSWER)


class Which(TypedDict, total=False):
    """Which of the requests with the right API key a fault takes; what is left out takes all."""

    times: int | None  # applied this many times
    skip: int  # not applied to the first ones
    probability: float  # of each, drawn from `seed`
    seed: int
    node: int | None  # requests to this node
    where: Callable[[KafkaRequest], bool] | None


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule: ``Fault.cut_answer(ApiKey.PRODUCE, times=3)``. No API key at all means every request.

    ``skip`` counts what matches otherwise, ``times`` what was taken. A produce request with acks=0 has no answer,
    so no fault on answers takes it.
    """

    effect: Effect
    api_keys: frozenset[int]
    seconds: float | None = None
    times: int | None = None
    skip: int = 0
    probability: float = 1.0
    seed: int = 0
    node: int | None = None
    where: Callable[[KafkaRequest], bool] | None = None

    @classmethod
    def delay_request(cls, *api_keys: int, seconds: float, **which: Unpack[Which]) -> Self:
        """Pass the request on after ``seconds``; what the connection sends behind it waits too."""
        return cls(Effect.DELAY_REQUEST, frozenset(api_keys), seconds, **which)

    @classmethod
    def drop_request(cls, *api_keys: int, **which: Unpack[Which]) -> Self:
        """Swallow the request: the broker never sees it, and the connection stays open."""
        return cls(Effect.DROP_REQUEST, frozenset(api_keys), **which)

    @classmethod
    def cut_request(cls, *api_keys: int, **which: Unpack[Which]) -> Self:
        """Close the connection in place of passing the request on."""
        return cls(Effect.CUT_REQUEST, frozenset(api_keys), **which)

    @classmethod
    def delay_answer(cls, *api_keys: int, seconds: float, **which: Unpack[Which]) -> Self:
        """Give the answer ``seconds`` after the request was passed on, or later; answers behind it wait too."""
        return cls(Effect.DELAY_ANSWER, frozenset(api_keys), seconds, **which)

    @classmethod
    def hold_answer(cls, *api_keys: int, **which: Unpack[Which]) -> Self:
        """Keep the answer until the fault is removed."""
        return cls(Effect.DELAY_ANSWER, frozenset(api_keys), None, **which)

    @classmethod
    def drop_answer(cls, *api_keys: int, **which: Unpack[Which]) -> Self:
        """Swallow the answer: the broker did what was asked, and the connection stays open."""
        return cls(Effect.DROP_ANSWER, frozenset(api_keys), **which)

    @classmethod
    def cut_answer(cls, *api_keys: int, **which: Unpack[Which]) -> Self:
        """Wait for the answer and close the connection in place of giving it: the broker did what was asked."""
        return cls(Effect.CUT_ANSWER, frozenset(api_keys), **which)


class ActiveFault:
    """A fault at work. ``taken`` is the number of requests it took so far."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.taken = 0
        self.removed = asyncio.Event()  # set in the proxy's loop: ends every delay of this fault
        self._matched = 0
        self._random = random.Random(fault.seed)

    def takes(self, request: KafkaRequest) -> bool:
        """Whether this request is one of those; counts it if so."""
        fault = self.fault
        if fault.times is not None and self.taken >= fault.times:
            return False
        if not self._matches(request):
            return False
        self._matched += 1
        if self._matched <= fault.skip or self._random.random() >= fault.probability:
            return False
        self.taken += 1
        return True

    def _matches(self, request: KafkaRequest) -> bool:
        fault = self.fault
        return (
            (not fault.api_keys or request.api_key in fault.api_keys)
            and (fault.node is None or fault.node == request.node)
            and (not fault.effect.on_answer or request.expects_answer)
            and (fault.where is None or fault.where(request))
        )


class FaultBook:
    """The faults at work, in the order they were added; the first that takes a request is the one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: tuple[ActiveFault, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._active)

    def add(self, fault: Fault) -> ActiveFault:
        active = ActiveFault(fault)
        with self._lock:
            self._active = (*self._active, active)
        return active

    def remove(self, active: ActiveFault) -> None:
        with self._lock:
            self._active = tuple(other for other in self._active if other is not active)

    def clear(self) -> tuple[ActiveFault, ...]:
        """Remove all of them; those that were there."""
        with self._lock:
            removed, self._active = self._active, ()
        return removed

    def taking(self, request: KafkaRequest) -> ActiveFault | None:
        """The fault that takes ``request``."""
        with self._lock:
            return next((active for active in self._active if active.takes(request)), None)
