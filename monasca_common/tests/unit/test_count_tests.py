# SPDX-License-Identifier: Apache-2.0
"""The line that ends a test run is honest."""

import subprocess
import sys
import textwrap
from pathlib import Path

import fixtures
import subunit
from oslotest import base

from monasca_common.tests.checker import Verdict

COUNT = Path(__file__).parents[3] / "tools" / "count_tests.py"


class ResultsCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.results = Path(self.useFixture(fixtures.TempDir()).path)

    def suite(self, name, *statuses, exit_status=0):
        """Write what stestr would leave of a suite whose tests ended so."""
        (self.results / f"{name}.status").write_text(str(exit_status))
        (self.results / f"{name}.stderr").write_text(f"first words of {name}\n" + "more\n" * 59)
        with (self.results / f"{name}.1.subunit").open("wb") as stream:
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

    def failed(self, name, test_id, traceback):
        """Add a test that failed so to what `suite` wrote."""
        with (self.results / f"{name}.1.subunit").open("ab") as stream:
            result = subunit.StreamResultToBytes(stream)
            trace = {"file_name": "traceback", "mime_type": "text/plain;charset=utf8"}
            result.status(test_id=test_id, file_bytes=traceback.encode(), **trace)
            result.status(test_id=test_id, test_status="fail")

    def passed(self, name, *test_ids):
        with (self.results / f"{name}.1.subunit").open("ab") as stream:
            for test_id in test_ids:
                subunit.StreamResultToBytes(stream).status(test_id=test_id, test_status="success")


class TestCountTests(ResultsCase):
    def test_suites_and_checks_are_added_up(self):
        self.suite("unit", "success", "success", "xfail")
        self.suite("functional", "success")
        self.assertEqual(("9 passed, 0 failed, 0 skipped", 0), self.count("--passed", "5"))

    def test_a_failure_fails(self):
        self.suite("unit", "success", "fail", "uxsuccess", exit_status=1)
        self.assertEqual(("1 passed, 2 failed, 0 skipped", 1), self.count())

    def test_what_failed_is_told_at_the_end_with_its_traceback(self):
        self.suite("unit", "success", exit_status=1)
        self.failed("unit", "unit.red", "AssertionError: 1 != 2")
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

    def test_a_run_that_broke_off_is_a_failure_beside_those_of_its_tests(self):
        self.suite("unit", "success", "fail", exit_status=2)
        self.assertEqual(("1 passed, 2 failed, 0 skipped", 1), self.count())

    def test_every_process_of_a_suite_is_counted(self):
        self.suite("unit", "success")
        (self.results / "unit.1.subunit").rename(self.results / "unit.2.subunit")
        self.suite("unit", "success", "success")
        self.assertEqual(("3 passed, 0 failed, 0 skipped", 0), self.count())

    def test_a_suite_without_tests_is_a_failure(self):
        self.suite("unit")
        self.assertEqual(("0 passed, 1 failed, 0 skipped", 1), self.count())


LIMIT = "fixtures._fixtures.timeout.TimeoutException"
NOT_STARTED = """\
Traceback (most recent call last):
  File "test_orders.py", line 12, in test_an_order_arrives
    cluster.start()
monasca_common.devbroker.errors.BrokerFailed: node 1 did not listen within 180 s
"""
SET_UP = """\
Traceback (most recent call last):
  File "test_orders.py", line 7, in setUp
    self.database = connect()
ConnectionRefusedError: [Errno 111] Connection refused
"""
CLAIM = 'Traceback (most recent call last):\n  File "test_orders.py", line 9, in test_it\nAssertionError: 1 row != 2'
CLAIM_IN_SET_UP = SET_UP.replace("ConnectionRefusedError", "testtools.matchers._impl.MismatchError")


class TestFlaky(ResultsCase):
    def again(self, *passed, failed=()):
        self.suite("unit-again", exit_status=1 if failed else 0)
        self.passed("unit-again", *passed)
        for test_id in failed:
            self.failed("unit-again", test_id, NOT_STARTED)

    def repeatable(self):
        return self.run_command("--repeatable", "unit").stdout.split()

    def first(self, *failures):
        self.suite("unit", "success", exit_status=1)
        for number, traceback in enumerate(failures):
            self.failed("unit", f"unit.Some.test_{number}", traceback)

    def test_what_did_not_start_was_not_set_up_or_met_its_limit_is_run_once_more(self):
        self.first(LIMIT, NOT_STARTED, SET_UP)
        self.assertEqual([f"unit.Some.test_{number}" for number in range(3)], self.repeatable())

    def test_what_tells_of_lost_or_doubled_messages_is_never_run_once_more(self):
        undelivered = SET_UP.replace("ConnectionRefusedError", "monasca_common.kafka.errors.UndeliveredError")
        lost = Verdict(frozenset({7}), frozenset(), frozenset(), 9, 0, frozenset())
        doubled = Verdict(frozenset(), frozenset({7}), frozenset(), 9, 0, frozenset())
        beside = f"{CLAIM}\n\nDuring handling of the above exception, another exception occurred:\n\n{undelivered}"
        self.first(undelivered, f"AssertionError: False is not true : {lost}", f"{CLAIM} : {doubled}", beside, "")
        self.assertEqual([], self.repeatable())

    def test_one_failed_claim_that_holds_the_second_time_is_listed_and_two_fail_the_run(self):
        self.first(CLAIM, LIMIT)
        self.again("unit.Some.test_0", "unit.Some.test_1")
        done = self.run_command()
        self.assertEqual(("3 passed, 0 failed, 0 skipped", 0), (done.stdout.splitlines()[-1], done.returncode))
        self.assertIn(f"flaky: unit.Some.test_0\n{CLAIM}", done.stdout)

        self.first(CLAIM, CLAIM_IN_SET_UP)
        self.again("unit.Some.test_0", "unit.Some.test_1")
        self.assertEqual(("1 passed, 2 failed, 0 skipped", 1), self.count())

    def test_a_time_out_beside_a_failed_claim_is_a_claim(self):
        self.first(CLAIM)
        with (self.results / "unit.1.subunit").open("ab") as stream:
            result = subunit.StreamResultToBytes(stream)
            for name, text in (("traceback", LIMIT), ("traceback-1", CLAIM)):
                mime_type = "text/plain;charset=utf8"
                result.status(test_id="unit.Some.test_1", file_name=name, mime_type=mime_type, file_bytes=text.encode())
            result.status(test_id="unit.Some.test_1", test_status="fail")
        self.again("unit.Some.test_0", "unit.Some.test_1")
        self.assertEqual(("1 passed, 2 failed, 0 skipped", 1), self.count())

    def test_a_class_that_could_not_start_is_run_once_more_as_a_whole(self):
        self.suite("unit", "success", exit_status=1)
        self.failed("unit", "setUpClass (unit.Some)", SET_UP.replace("setUp", "setUpClass"))
        self.assertEqual(["unit.Some"], self.repeatable())

        self.again("unit.Some.test_a", "unit.Some.test_b")

        self.assertEqual(("3 passed, 0 failed, 0 skipped", 0), self.count())

    def test_what_then_passes_counts_as_passed_and_is_shown_above_the_last_line(self):
        self.first(LIMIT)
        self.again("unit.Some.test_0")

        done = self.run_command()

        self.assertEqual(["flaky: unit.Some.test_0", LIMIT, "2 passed, 0 failed, 0 skipped"], done.stdout.splitlines())
        self.assertEqual((0, ""), (done.returncode, done.stderr))

    def test_what_fails_again_is_one_failure(self):
        self.first(LIMIT, NOT_STARTED)
        self.again("unit.Some.test_0", failed=["unit.Some.test_1"])

        self.assertEqual(("2 passed, 1 failed, 0 skipped", 1), self.count())

    def test_a_lost_message_stays_failed_even_if_something_ran_the_test_again(self):
        self.first(f"{CLAIM} : 9 stored, 0 dead letters, 0 open: 1 lost ['7']")
        self.again("unit.Some.test_0")

        self.assertEqual(1, self.count()[1])

    def test_a_class_of_which_one_test_fails_again_is_not_forgiven(self):
        self.suite("unit", "success", exit_status=1)
        self.failed("unit", "setUpClass (unit.Some)", SET_UP)
        self.again("unit.Some.test_a", failed=["unit.Some.test_b"])

        self.assertEqual(("2 passed, 1 failed, 0 skipped", 1), self.count())

    def test_two_may_be_flaky_and_more_fail_the_run(self):
        self.first(LIMIT, LIMIT)
        self.again("unit.Some.test_0", "unit.Some.test_1")
        self.assertEqual(("3 passed, 0 failed, 0 skipped", 0), self.count())

        self.first(LIMIT, LIMIT, LIMIT)
        self.again("unit.Some.test_0", "unit.Some.test_1", "unit.Some.test_2")
        self.assertEqual(("1 passed, 3 failed, 0 skipped", 1), self.count())

    def test_a_machine_on_which_nothing_starts_does_not_run_everything_twice(self):
        self.first(*[NOT_STARTED] * 11)
        self.assertEqual([], self.repeatable())

    def test_a_second_run_that_broke_off_is_a_failure(self):
        self.first(LIMIT)
        self.again("unit.Some.test_0")
        (self.results / "unit-again.status").write_text("2")

        self.assertEqual(1, self.count()[1])


SOME = """\
import os, signal, unittest
import fixtures, testtools

class Good(unittest.TestCase):
    def test_a(self): pass
    def test_b(self): pass

class Dying(unittest.TestCase):
    def test_a(self): os.kill(os.getpid(), signal.SIGKILL)
    def test_b(self): pass

class NotReady(fixtures.Fixture):
    def _setUp(self): raise ConnectionRefusedError("not yet")

class Starting(testtools.TestCase):
    def test_a(self): self.useFixture(NotReady())

class Claiming(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.assertEqual(1, 2)
    def test_a(self): pass

class ClassStarting(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise OSError("port taken")
    def test_a(self): pass
"""


class TestRunSuite(ResultsCase):
    """`run_suite.py` over a package of tests of its own."""

    def run_suite(self, source, *arguments):
        package = self.results / "package"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / "test_some.py").write_text(textwrap.dedent(source))
        cache = self.results / "cache"
        command = [sys.executable, str(COUNT.with_name("run_suite.py")), "package", str(self.results), "unit"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=self.results,
            env={"XDG_CACHE_HOME": str(cache)},
            capture_output=True,
            text=True,
            check=False,
        )
        (self.results / "unit.status").write_text(str(done.returncode))
        (self.results / "unit.stderr").write_text(done.stderr)
        return done

    def source(self, *classes):
        head, *rest = SOME.split("\nclass ")
        return "\nclass ".join([head, *(each for each in rest if each.split("(")[0] in classes)])

    def test_everything_runs_once_and_the_slowest_are_named(self):
        done = self.run_suite(self.source("Good"))

        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("The slowest classes of the unit tests:", done.stdout)
        self.assertEqual(("2 passed, 0 failed, 0 skipped", 0), self.count())
        self.assertIn("package.test_some.Good", (self.results / "cache/monasca-common/class_seconds.json").read_text())

    def test_a_process_that_dies_fails_its_test_and_another_one_runs_the_rest(self):
        done = self.run_suite(self.source("Good", "Dying"), "--processes", "1")

        self.assertIn("ended (-9) in package.test_some.Dying.test_a", done.stderr)
        self.assertEqual(("3 passed, 1 failed, 0 skipped", 1), self.count())
        self.assertEqual(["package.test_some.Dying.test_a"], self.run_command("--repeatable", "unit").stdout.split())

    def test_real_failures_of_set_up_and_of_fixtures_and_of_claims_are_run_once_more(self):
        done = self.run_suite(self.source("NotReady", "Starting", "Claiming", "ClassStarting"))

        self.assertEqual(1, done.returncode)
        self.assertEqual(
            {
                "package.test_some.Starting.test_a",
                "package.test_some.Claiming.test_a",
                "package.test_some.ClassStarting",
            },
            set(self.run_command("--repeatable", "unit").stdout.split()),
        )

    def test_what_is_named_is_run_alone(self):
        named = self.results / "named"
        named.write_text("package.test_some.Good.test_b\n")

        self.run_suite(self.source("Good", "Dying"), "--only", str(named))

        self.assertEqual(("1 passed, 0 failed, 0 skipped", 0), self.count())

    def test_a_module_that_cannot_be_imported_fails_the_run(self):
        self.run_suite("import nothing_of_this_name\n")

        self.assertEqual(("0 passed, 1 failed, 0 skipped", 1), self.count())

    def queue(self, names, *arguments):
        sys.path.insert(0, str(COUNT.parent))
        self.addCleanup(sys.path.remove, str(COUNT.parent))
        from run_suite import Queue

        return Queue({name: [] for name in names}, *arguments)

    def test_what_keeps_a_core_busy_is_for_some_processes_and_the_rest_for_the_others(self):
        seconds = {"spark.Long": 9, "spark.Short": 1, "wait.Long": 8, "wait.Short": 2}
        queue = self.queue(seconds, seconds, "spark.")

        taken = [queue.take(busy=busy)[0] for busy in (True, False, True, True)]

        self.assertEqual(["spark.Long", "wait.Long", "spark.Short", "wait.Short"], taken)

    def test_the_longest_class_goes_first_and_then_its_module(self):
        seconds = {"a.Short": 2, "b.Long": 9, "b.Brief": 1}
        queue = self.queue([*seconds, "c.New"], seconds)

        taken = [queue.take()[0], queue.take("c")[0], queue.take("b")[0], queue.take("b")[0], queue.take("b")]
        self.assertEqual(["c.New", "b.Long", "b.Brief", "a.Short", None], taken)
