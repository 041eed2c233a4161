# SPDX-License-Identifier: Apache-2.0
"""The faults that a proxy injects into requests and responses."""

import asyncio
import enum
import random
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, Self

from monasca_common.tests.kafka_proxy.framing import ApiKey, KafkaRequest


class Effect(enum.Enum):
    DELAY_REQUEST = "delay request"
    DROP_REQUEST = "drop request"
    CUT_REQUEST = "cut request"
    DELAY_ANSWER = "delay answer"
    DROP_ANSWER = "drop answer"
    CUT_ANSWER = "cut response"
    HIDE_BROKERS = "hide brokers"

    @property
    def on_answer(self) -> bool:
        return self in (Effect.DELAY_ANSWER, Effect.DROP_ANSWER, Effect.CUT_ANSWER, Effect.HIDE_BROKERS)


@dataclass(eq=False, slots=True)
class Fault:
    """A rule, such as ``Fault.cut_answer(ApiKey.PRODUCE, times=3)``. Without API keys it matches every request.

    ``times``: the maximum number of affected requests. ``probability``: per request, with random numbers from ``seed``.
    ``where``: a condition of affected requests. ``taken``: the number of requests that the fault has affected.
    """

    effect: Effect
    api_keys: frozenset[int]
    seconds: float | None = None
    times: int | None = None
    probability: float = 1.0
    seed: InitVar[int] = 0
    where: Callable[[KafkaRequest], bool] | None = None
    taken: int = field(default=0, init=False)
    # this event is set in the proxy's event loop, and ends every delay of this fault
    removed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    @classmethod
    def delay_request(cls, *api_keys: int, seconds: float, **filters: Any) -> Self:
        """Forward the request after ``seconds``; later requests of the connection also wait."""
        return cls(Effect.DELAY_REQUEST, frozenset(api_keys), seconds, **filters)

    @classmethod
    def drop_request(cls, *api_keys: int, **filters: Any) -> Self:
        """Discard the request: the broker does not receive it, and the connection stays open."""
        return cls(Effect.DROP_REQUEST, frozenset(api_keys), **filters)

    @classmethod
    def cut_request(cls, *api_keys: int, **filters: Any) -> Self:
        """Close the connection instead of forwarding the request."""
        return cls(Effect.CUT_REQUEST, frozenset(api_keys), **filters)

    @classmethod
    def delay_answer(cls, *api_keys: int, seconds: float, **filters: Any) -> Self:
        """Forward the response at least ``seconds`` after its request; later responses of the connection also wait."""
        return cls(Effect.DELAY_ANSWER, frozenset(api_keys), seconds, **filters)

    @classmethod
    def hold_answer(cls, *api_keys: int, **filters: Any) -> Self:
        """Hold the response until the fault is removed."""
        return cls(Effect.DELAY_ANSWER, frozenset(api_keys), None, **filters)

    @classmethod
    def drop_answer(cls, *api_keys: int, **filters: Any) -> Self:
        """Discard the response: the broker has executed the request, and the connection stays open."""
        return cls(Effect.DROP_ANSWER, frozenset(api_keys), **filters)

    @classmethod
    def cut_answer(cls, *api_keys: int, **filters: Any) -> Self:
        """Close the connection instead of forwarding the response: the broker has executed the request."""
        return cls(Effect.CUT_ANSWER, frozenset(api_keys), **filters)

    @classmethod
    def hide_brokers(cls, **filters: Any) -> Self:
        """Remove the brokers from a metadata response, as a restarting cluster can, and then close the connection."""
        return cls(Effect.HIDE_BROKERS, frozenset({ApiKey.METADATA}), **filters)

    def takes(self, request: KafkaRequest) -> bool:
        """Return whether the fault affects this request, and count the request if so."""
        if self.times is not None and self.taken >= self.times:
            return False
        if self.api_keys and request.api_key not in self.api_keys:
            return False
        if (self.where is not None and not self.where(request)) or self._random.random() >= self.probability:
            return False
        self.taken += 1
        return True
