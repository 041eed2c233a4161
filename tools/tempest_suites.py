# SPDX-License-Identifier: Apache-2.0
"""The suites of the public plugin, and which of them concern what is built."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_PACKAGE = "monasca_tempest_tests.tests."


@dataclass(frozen=True, slots=True)
class Suite:
    """``modules``: those of the plugin that it consists of, or packages of them, below its package of tests."""

    name: str
    modules: tuple[str, ...]

    def has(self, test: str) -> bool:
        """Whether it has the test of this id; of a class that failed as a whole the id is setUpClass (its name)."""
        return any(re.search(rf"{re.escape(_PACKAGE + module)}\b", test) for module in self.modules)


SUITES = (
    Suite("versions", ("api.test_versions",)),
    Suite("metrics", ("api.test_metrics",)),
    Suite("names", ("api.test_metrics_names",)),
    Suite("dimensions", ("api.test_dimensions",)),
    Suite("measurements", ("api.test_measurements",)),
    Suite("statistics", ("api.test_statistics",)),
    Suite("read-only", ("api.test_read_only_role",)),
    Suite("logs", ("log_api",)),
    Suite("events", ("event_api",)),
    Suite("notification-methods", ("api.test_notification_methods", "api.test_notification_method_type")),
    Suite("alarm-definitions", ("api.test_alarm_definitions",)),
    Suite("alarms", ("api.test_alarms",)),
    Suite("alarm-counts", ("api.test_alarms_count",)),
    Suite("alarm-transitions", ("api.test_alarm_transitions",)),
    Suite(
        "alarm-history",
        ("api.test_alarms_state_history_one_transition", "api.test_alarm_state_history_multiple_transitions"),
    ),
)

#: Why each of these runs only when it is named. What is built is taken out, and runs always from then on.
NOT_BUILT = dict.fromkeys(("alarms", "alarm-counts", "alarm-transitions", "alarm-history"), "not seen to pass whole")


def chosen(names: Sequence[str]) -> tuple[Suite, ...]:
    """The suites of these names; without one, all that are built. Raises `ValueError`."""
    known = {suite.name for suite in SUITES}
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(suite.name for suite in SUITES)
        raise ValueError(f"there is no suite {', '.join(unknown)}: the suites are {listed}")
    return tuple(suite for suite in SUITES if (suite.name in names if names else suite.name not in NOT_BUILT))


def suite_of(test: str, suites: Iterable[Suite] = SUITES) -> Suite | None:
    return next((suite for suite in suites if suite.has(test)), None)
