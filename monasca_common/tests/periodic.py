# SPDX-License-Identifier: Apache-2.0
"""Mark the test classes that only the full run executes (``bash tools/run_tests.sh --all``)."""

from collections.abc import Callable
from typing import TypeVar

_TestClass = TypeVar("_TestClass", bound=type)


def periodic(reason: str) -> Callable[[_TestClass], _TestClass]:
    """Keep a test class, but not its subclasses, out of the everyday run.

    :param reason: why the class may wait for the full run, for example which cheaper test covers the same rule
    """

    def mark(test_class: _TestClass) -> _TestClass:
        test_class.periodic_reason = reason  # type: ignore[attr-defined]
        return test_class

    return mark


def reason_of(test_class: type) -> str | None:
    """Return why a test class is periodic, or None if the everyday run executes it."""
    reason: str | None = vars(test_class).get("periodic_reason")
    return reason
