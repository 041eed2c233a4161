# SPDX-License-Identifier: Apache-2.0
"""The faults: a table of kinds, a schedule by seed with one fault a minute, and their injection."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from endurance_run.stack import Instance, Stack, faketime_library
from monasca_common.tests.kafka_proxy import ApiKey, Fault

MINUTE_SECONDS = 60.0
# start of a fault within its minute, early enough to end in the same minute
_EARLIEST_SECONDS, _LATEST_SECONDS = 5.0, 20.0
_FROZEN_SECONDS = 18.0  # longer than the session of 10 s
_DOWN_SECONDS = 15.0
_KILLED_SECONDS = 3.0
_CUTS, _CUT_EVERY_SECONDS = 6, 2.0
_LOSS_SECONDS, _LOSS_PROBABILITY = 15.0, 0.3
_FULL_SECONDS = 12.0
_SKEWED_SECONDS, _SKEW_SECONDS = 20.0, 60
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """``at_seconds``: seconds since the start of the run. ``choice``: selects the target."""

    at_seconds: float
    kind: str
    choice: int


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """``began``, ``ended``: seconds since the start of the run."""

    kind: str
    target: str
    began: float
    ended: float


def schedule(seed: int, minutes: int, kinds: tuple[str, ...]) -> list[PlannedFault]:
    """Plan one fault in each minute except the first. Each kind occurs once before any kind occurs again."""
    chance = random.Random(seed)
    kinds_in_order = itertools.chain.from_iterable(chance.sample(kinds, len(kinds)) for _ in itertools.count())
    return [
        PlannedFault(
            round(minute * MINUTE_SECONDS + chance.uniform(_EARLIEST_SECONDS, _LATEST_SECONDS), 1),
            next(kinds_in_order),
            chance.randrange(1 << 16),
        )
        for minute in range(1, minutes)
    ]


def _kill(stack: Stack, choice: int) -> str:
    victim = _victim(stack, choice)
    victim.kill()
    time.sleep(_KILLED_SECONDS)
    victim.start()
    victim.wait_until_ready()
    return victim.name


def _freeze(stack: Stack, choice: int) -> str:
    victim = _victim(stack, choice)
    victim.signal(signal.SIGSTOP)
    time.sleep(_FROZEN_SECONDS)
    victim.signal(signal.SIGCONT)
    return victim.name


def _stop_a_broker(stack: Stack, choice: int) -> str:
    node = stack.kafka.node(2 + choice % 2)  # the first process is never killed
    node.kill()
    time.sleep(_DOWN_SECONDS)
    node.restart()
    return f"node {node.id}"


def _cut_connections(stack: Stack, _choice: int) -> str:
    cut = 0
    for _ in range(_CUTS):
        with contextlib.suppress(TimeoutError):  # on a busy machine, the connections are cut later
            cut += stack.kafka.proxy.cut_connections()
        time.sleep(_CUT_EVERY_SECONDS)
    return f"{cut} connections"


def _lose_answers(stack: Stack, choice: int) -> str:
    filters = {"probability": _LOSS_PROBABILITY, "seed": choice}
    fault = stack.kafka.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, **filters))
    time.sleep(_LOSS_SECONDS)
    stack.kafka.proxy.remove(fault)
    return f"{fault.taken} answers"


def _restart_the_database(stack: Stack, _choice: int) -> str:
    stack.postgresql.restart()
    return "PostgreSQL"


def _restart_the_registry(stack: Stack, _choice: int) -> str:
    stack.registry.signal(signal.SIGKILL)
    stack.registry.ended_within(_DOWN_SECONDS)
    time.sleep(_DOWN_SECONDS)
    stack.registry.start()
    stack.register_schemas()
    return "the registry, which has lost its schemas"


def _fill_the_disk(stack: Stack, _choice: int) -> str:
    ballast = stack.disk / "ballast"
    try:
        _fill(ballast)
        time.sleep(_FULL_SECONDS)
    finally:
        ballast.unlink(missing_ok=True)
    if not stack.postgresql.running:
        stack.postgresql.restart()
    return "the tables of PostgreSQL"


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(_BLOCK_BYTES))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return


def _skew_a_clock(stack: Stack, choice: int) -> str:
    victim = _victim(stack, choice)
    seconds = _SKEW_SECONDS if choice % 2 else -_SKEW_SECONDS
    victim.stop()
    victim.start(skew_seconds=seconds)
    time.sleep(_SKEWED_SECONDS)
    victim.stop()
    victim.start()
    victim.wait_until_ready()
    return f"{victim.name} by {seconds:+d} s"


def _victim(stack: Stack, choice: int) -> Instance:
    victims = stack.victims()
    return victims[choice % len(victims)]


#: Kind of fault: what it does, and the function that injects it and returns its target.
FAULTS: dict[str, tuple[str, Callable[[Stack, int], str]]] = {
    "kill": (f"SIGKILL to a service; started again after {_KILLED_SECONDS:g} s", _kill),
    "freeze": (f"SIGSTOP to a service for {_FROZEN_SECONDS:g} s, beyond its session", _freeze),
    "broker down": (f"SIGKILL to a broker; started again after {_DOWN_SECONDS:g} s", _stop_a_broker),
    "connections cut": (f"all connections to the brokers are closed {_CUTS} times", _cut_connections),
    "answers lost": (
        f"{_LOSS_PROBABILITY:.0%} of the responses to produce and commit requests are lost for {_LOSS_SECONDS:g} s",
        _lose_answers,
    ),
    "database restart": ("a fast restart of PostgreSQL, which ends all sessions", _restart_the_database),
    "registry restart": (
        f"SIGKILL to the schema registry; started again after {_DOWN_SECONDS:g} s; its schemas are registered again",
        _restart_the_registry,
    ),
    "full disk": (f"the file system of PostgreSQL's tables is full for {_FULL_SECONDS:g} s", _fill_the_disk),
    "clock skew": (
        f"a service runs {_SKEWED_SECONDS:g} s with a clock that differs by {_SKEW_SECONDS} s",
        _skew_a_clock,
    ),
}


def skipped(stack: Stack) -> dict[str, str]:
    """Return the kinds that this machine does not permit, with the reason."""
    reasons = {}
    if not stack.has_small_disk:
        reasons["full disk"] = "a file system of limited size requires root"
    if faketime_library() is None:
        reasons["clock skew"] = "libfaketime is not installed (Debian's package faketime)"
    return reasons
