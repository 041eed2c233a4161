# SPDX-License-Identifier: Apache-2.0
"""Mark the tests that only the full run executes (``bash tools/run_tests.sh --all``)."""

from collections.abc import Callable
from typing import TypeVar

_Marked = TypeVar("_Marked", bound=Callable[..., object])


def periodic(reason: str) -> Callable[[_Marked], _Marked]:
    """Keep a test class, but not its subclasses, or one test method out of the everyday run.

    :param reason: why the tests may wait for the full run, for example which cheaper test covers the same rule
    """

    def mark(marked: _Marked) -> _Marked:
        marked.periodic_reason = reason  # type: ignore[attr-defined]
        return marked

    return mark


def reason_of(test_class: type, test: str = "") -> str | None:
    """Return why a test class, or its test with this name or id, is periodic; None if the everyday run executes it."""
    method = getattr(test_class, test.rpartition(".")[2], None)
    reason: str | None = vars(test_class).get("periodic_reason", getattr(method, "periodic_reason", None))
    return reason
