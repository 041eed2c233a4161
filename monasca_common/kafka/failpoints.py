# SPDX-License-Identifier: Apache-2.0
"""Named places at which a test can make this process fail.

A random ``kill -9`` almost never lands between an acknowledgement and its commit. A fail point does::

    with failpoints.armed("processor.before_commit", "raise"): ...
    MONASCA_FAIL_POINTS="processor.before_commit=kill@3;processor.after_poll=sleep:0.5" python service.py

Actions: ``kill`` (SIGKILL to this process), ``raise`` (`FailPointReached`) and ``sleep:<seconds>``; ``@n`` selects the
n-th pass of the fail point (``kill``, ``raise``: only that time; ``sleep``: from then on). An unarmed fail point only
reads an empty dictionary.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from monasca_common.kafka.errors import ConfigurationError, MessagingError

ENVIRONMENT_VARIABLE = "MONASCA_FAIL_POINTS"


class FailPointReached(MessagingError):
    """A test armed this fail point with ``raise``."""


@dataclass(slots=True)
class _Trap:
    action: str
    seconds: float
    at: int
    passed: int = 0


_armed: dict[str, _Trap] = {}
_lock = threading.Lock()


def fail_point(name: str) -> None:
    """Run the action that a test has armed for ``name``, if any."""
    if _armed:
        _spring(name)


def _spring(name: str) -> None:
    with _lock:
        trap = _armed.get(name)
        if trap is None:
            return
        trap.passed += 1
        due = trap.passed >= trap.at if trap.action == "sleep" else trap.passed == trap.at
    if not due:
        return
    if trap.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if trap.action == "raise":
        raise FailPointReached(f"fail point {name!r} was armed to raise")
    time.sleep(trap.seconds)


def arm(name: str, action: str) -> None:
    """Arm a fail point. ``action``: ``kill``, ``raise`` or ``sleep:<seconds>``, each optionally with ``@n``."""
    verb, _, at = action.partition("@")
    verb, _, seconds = verb.partition(":")
    try:
        trap = _Trap(verb, float(seconds or 0), int(at or 1))
    except ValueError:
        trap = _Trap("", 0, 0)
    if trap.action not in ("kill", "raise", "sleep") or trap.at < 1:
        raise ConfigurationError(
            f"fail point {name!r} has action {action!r}: use kill, raise or sleep:<seconds>, optionally with @n"
        )
    _armed[name] = trap


@contextlib.contextmanager
def armed(name: str, action: str) -> Iterator[None]:
    """Arm ``name`` within a ``with`` block."""
    arm(name, action)
    try:
        yield
    finally:
        _armed.pop(name, None)


def arm_from(text: str) -> None:
    """Arm all fail points in ``name=action;name=action``, the format of the environment variable."""
    for entry in filter(None, text.split(";")):
        name, _, action = entry.partition("=")
        arm(name.strip(), action.strip())


arm_from(os.environ.get(ENVIRONMENT_VARIABLE, ""))
