# SPDX-License-Identifier: Apache-2.0
"""The line that ends a test run is honest."""

import subprocess
import sys
from pathlib import Path

import fixtures
import subunit
from oslotest import base

COUNT = Path(__file__).parents[3] / "tools" / "count_tests.py"


class TestCountTests(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.results = Path(self.useFixture(fixtures.TempDir()).path)

    def suite(self, name, *statuses, exit_status=0):
        """Write what stestr would leave of a suite whose tests ended so."""
        (self.results / f"{name}.status").write_text(str(exit_status))
        with (self.results / f"{name}.subunit").open("wb") as stream:
            result = subunit.StreamResultToBytes(stream)
            for number, status in enumerate(statuses):
                result.status(test_id=f"{name}.{number}", test_status="inprogress")
                if status != "inprogress":
                    result.status(test_id=f"{name}.{number}", test_status=status)

    def count(self, *arguments, ci=""):
        """(last line, exit status)."""
        command = [sys.executable, str(COUNT), str(self.results), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={"CI": ci}, check=False)
        return done.stdout.splitlines()[-1], done.returncode

    def test_suites_and_checks_are_added_up(self):
        self.suite("unit", "success", "success", "xfail")
        self.suite("functional", "success")
        self.assertEqual(("9 passed, 0 failed, 0 skipped", 0), self.count("--passed", "5"))

    def test_a_failure_fails(self):
        self.suite("unit", "success", "fail", "uxsuccess", exit_status=1)
        self.assertEqual(("1 passed, 2 failed, 0 skipped", 1), self.count())

    def test_a_failed_check_fails(self):
        self.suite("unit", "success")
        self.assertEqual(("1 passed, 1 failed, 0 skipped", 1), self.count("--failed", "1"))

    def test_a_skip_fails_in_continuous_integration_alone(self):
        self.suite("unit", "success", "skip")
        self.assertEqual(("1 passed, 0 failed, 1 skipped", 0), self.count())
        self.assertEqual(("1 passed, 0 failed, 1 skipped", 1), self.count(ci="true"))

    def test_a_test_that_never_ended_is_a_failure(self):
        self.suite("unit", "success", "inprogress", exit_status=1)
        self.assertEqual(("1 passed, 1 failed, 0 skipped", 1), self.count())

    def test_a_run_that_broke_off_is_a_failure(self):
        self.suite("unit", "success", exit_status=100)
        self.assertEqual(("1 passed, 1 failed, 0 skipped", 1), self.count())

    def test_a_suite_without_tests_is_a_failure(self):
        self.suite("unit")
        self.assertEqual(("0 passed, 1 failed, 0 skipped", 1), self.count())
