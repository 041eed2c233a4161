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
        (self.results / f"{name}.stderr").write_text(f"first words of {name}\n" + "more\n" * 59)
        with (self.results / f"{name}.subunit").open("wb") as stream:
            result = subunit.StreamResultToBytes(stream)
            for number, status in enumerate(statuses):
                result.status(test_id=f"{name}.{number}", test_status="inprogress")
                if status != "inprogress":
                    result.status(test_id=f"{name}.{number}", test_status=status)

    def count(self, *arguments, ci=""):
        """(last line, exit status)."""
        done = self.run_command(*arguments, ci=ci)
        return done.stdout.splitlines()[-1], done.returncode

    def run_command(self, *arguments, ci=""):
        command = [sys.executable, str(COUNT), str(self.results), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={"CI": ci}, check=False)

    def test_suites_and_checks_are_added_up(self):
        self.suite("unit", "success", "success", "xfail")
        self.suite("functional", "success")
        self.assertEqual(("9 passed, 0 failed, 0 skipped", 0), self.count("--passed", "5"))

    def test_a_failure_fails(self):
        self.suite("unit", "success", "fail", "uxsuccess", exit_status=1)
        self.assertEqual(("1 passed, 2 failed, 0 skipped", 1), self.count())

    def test_what_failed_is_told_at_the_end_with_its_traceback(self):
        self.suite("unit", "success", exit_status=1)
        with (self.results / "unit.subunit").open("ab") as stream:
            result = subunit.StreamResultToBytes(stream)
            trace = {"file_name": "traceback", "mime_type": "text/plain;charset=utf8"}
            result.status(test_id="unit.red", file_bytes=b"AssertionError: 1 != 2", **trace)
            result.status(test_id="unit.red", test_status="fail")
        told = self.run_command().stderr
        self.assertIn("FAILED: unit.red (fail)\nAssertionError: 1 != 2", told)
        self.assertIn("first words of unit", told)

    def test_a_suite_that_passed_is_silent(self):
        self.suite("unit", "success")
        self.assertEqual("", self.run_command().stderr)

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
