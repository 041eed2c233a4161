# SPDX-License-Identifier: Apache-2.0
"""The suites of the two plugins: the public one, and the one in ``monasca_common/tests/tempest``."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: The plugins, each with the package that its tests are below.
OWN, PUBLIC = "own", "public"
PACKAGES = {OWN: "monasca_common.tests.tempest.", PUBLIC: "monasca_tempest_tests.tests."}


@dataclass(frozen=True, slots=True)
class Suite:
    """``modules``: those of the plugin that it consists of, or packages of them, below its package of tests."""

    name: str
    modules: tuple[str, ...]
    plugin: str = PUBLIC

    def has(self, test: str) -> bool:
        """Whether it has the test of this id; of a class that failed as a whole the id is setUpClass (its name)."""
        return any(re.search(rf"{re.escape(PACKAGES[self.plugin] + module)}\b", test) for module in self.modules)


SUITES = (
    Suite("own-metrics", ("api.test_metrics",), OWN),
    Suite("own-tenants", ("api.test_tenants",), OWN),
    Suite("own-alarms", ("api.test_alarms",), OWN),
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


#: Tests of the public plugin that give us too little time: how little, and what was measured. One that fails is run
#: once more, alone.
RACES = {
    "api.test_alarms.TestAlarms.test_verify_deterministic_alarm": "it looks for a state one second after its last "
    "post; 1.4 to 2.6 s were measured, of the 5 s that are promised, for a batch begins each second and takes another",
    "api.test_alarm_transitions.TestAlarmTransitions.": "it waits ten seconds for an alarm or a state; on a machine "
    "that did much else a batch was measured to take 3.5 s on average and up to 30, and two are needed",
}

#: How a test ends that looked too early: an alarm, or a state, is not there yet.
TOO_EARLY = re.compile(r"MismatchError: (1 != 0|'[A-Z]+' != '[A-Z]+')$")


def race(test: str) -> str | None:
    """Why the test gives us too little time, if it does."""
    within = test.removeprefix(PACKAGES[PUBLIC])
    return next((why for name, why in RACES.items() if within.startswith(name)), None)


def chosen(names: Sequence[str]) -> tuple[Suite, ...]:
    """The suites of these names; that of a plugin stands for all of its suites; no names: all. Raises `ValueError`."""
    known = {name for suite in SUITES for name in (suite.name, suite.plugin)}
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(suite.name for suite in SUITES)
        plugins = " and ".join(PACKAGES)
        raise ValueError(f"there is no suite {', '.join(unknown)}: the suites are {listed}; {plugins} are all of one")
    return tuple(suite for suite in SUITES if not names or suite.name in names or suite.plugin in names)


def suite_of(test: str, suites: Iterable[Suite] = SUITES) -> Suite | None:
    return next((suite for suite in suites if suite.has(test)), None)
