# SPDX-License-Identifier: Apache-2.0
"""The faults that a proxy injects into requests and responses.

A `Fault` is an immutable rule; an `ActiveFault` is a rule in effect that counts the affected requests.
"""

import asyncio
import enum
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypedDict, Unpack

from monasca_common.tests.kafka_proxy.framing import KafkaRequest


class Effect(enum.Enum):
    DELAY_REQUEST = "delay request"
    DROP_REQUEST = "drop request"
    CUT_REQUEST = "cut request"
    DELAY_ANSWER = "delay answer"
    DROP_ANSWER = "drop answer"
    CUT_ANSWER = "cut response"

    @property
    def on_answer(self) -> bool:
        return self in (Effect.DELAY_ANSWER, Effect.DROP_ANSWER, Effect.CUT_ANSWER)


class RequestFilter(TypedDict, total=False):
    """Selects some of the requests that have the API keys of a fault; without a filter, the fault affects all of
    them."""

    times: int | None  # the maximum number of affected requests
    probability: float  # probability per request, with random numbers from `seed`
    seed: int
    where: Callable[[KafkaRequest], bool] | None


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule, such as ``Fault.cut_answer(ApiKey.PRODUCE, times=3)``. Without API keys it matches every request.

    A produce request with acks=0 has no response, so faults on responses do not affect it.
    """

    effect: Effect
    api_keys: frozenset[int]
    seconds: float | None = None
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    where: Callable[[KafkaRequest], bool] | None = None

    @classmethod
    def delay_request(cls, *api_keys: int, seconds: float, **filters: Unpack[RequestFilter]) -> Self:
        """Forward the request after ``seconds``; later requests of the connection also wait."""
        return cls(Effect.DELAY_REQUEST, frozenset(api_keys), seconds, **filters)

    @classmethod
    def drop_request(cls, *api_keys: int, **filters: Unpack[RequestFilter]) -> Self:
        """Discard the request: the broker does not receive it, and the connection stays open."""
        return cls(Effect.DROP_REQUEST, frozenset(api_keys), **filters)

    @classmethod
    def cut_request(cls, *api_keys: int, **filters: Unpack[RequestFilter]) -> Self:
        """Close the connection instead of forwarding the request."""
        return cls(Effect.CUT_REQUEST, frozenset(api_keys), **filters)

    @classmethod
    def delay_answer(cls, *api_keys: int, seconds: float, **filters: Unpack[RequestFilter]) -> Self:
        """Forward the response at least ``seconds`` after its request; later responses of the connection also wait."""
        return cls(Effect.DELAY_ANSWER, frozenset(api_keys), seconds, **filters)

    @classmethod
    def hold_answer(cls, *api_keys: int, **filters: Unpack[RequestFilter]) -> Self:
        """Hold the response until the fault is removed."""
        return cls(Effect.DELAY_ANSWER, frozenset(api_keys), None, **filters)

    @classmethod
    def drop_answer(cls, *api_keys: int, **filters: Unpack[RequestFilter]) -> Self:
        """Discard the response: the broker has executed the request, and the connection stays open."""
        return cls(Effect.DROP_ANSWER, frozenset(api_keys), **filters)

    @classmethod
    def cut_answer(cls, *api_keys: int, **filters: Unpack[RequestFilter]) -> Self:
        """Close the connection instead of forwarding the response: the broker has executed the request."""
        return cls(Effect.CUT_ANSWER, frozenset(api_keys), **filters)


class ActiveFault:
    """A fault in effect. ``taken``: the number of requests that it has affected."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.taken = 0
        # this event is set in the proxy's event loop, and ends every delay of this fault
        self.removed = asyncio.Event()
        self._random = random.Random(fault.seed)

    def takes(self, request: KafkaRequest) -> bool:
        """Return whether the fault affects this request, and count the request if so."""
        fault = self.fault
        if fault.times is not None and self.taken >= fault.times:
            return False
        if not self._matches(request) or self._random.random() >= fault.probability:
            return False
        self.taken += 1
        return True

    def _matches(self, request: KafkaRequest) -> bool:
        fault = self.fault
        return (
            (not fault.api_keys or request.api_key in fault.api_keys)
            and (not fault.effect.on_answer or request.expects_answer)
            and (fault.where is None or fault.where(request))
        )


class FaultList:
    """The active faults, oldest first. The first matching fault affects a request. Thread-safe."""

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
        """Remove and return all faults."""
        with self._lock:
            removed, self._active = self._active, ()
        return removed

    def match(self, request: KafkaRequest) -> ActiveFault | None:
        """Return the fault that affects ``request``, and count the request."""
        with self._lock:
            return next((active for active in self._active if active.takes(request)), None)
