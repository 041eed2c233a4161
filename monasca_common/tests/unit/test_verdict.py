# SPDX-License-Identifier: Apache-2.0
"""The last line of a test run counts every test, including tests that did not run."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
import subunit
from oslotest import base

from monasca_common.tests import checker
from monasca_common.tests.functional.quickstart import test_quickstart

TOOLS = Path(__file__).parents[3] / "tools"
CLAIM = 'Traceback (most recent call last):\n  File "test_orders.py", line 9, in test_it\nAssertionError: 1 row != 2'
LOST = CLAIM.replace("AssertionError: ", "monasca_common.tests.checker.LostOrDuplicated: ")
SET_UP = "setUpClass (unit.Some)"


class ResultsCase(base.BaseTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        spec = importlib.util.spec_from_file_location("verdict", TOOLS / "verdict.py")
        cls.module = sys.modules["verdict"] = importlib.util.module_from_spec(spec)
        cls.addClassCleanup(sys.modules.pop, "verdict")
        spec.loader.exec_module(cls.module)

    def setUp(self):
        super().setUp()
        self.results = Path(self.useFixture(fixtures.TempDir()).path)

    def listed(self, *ids, name="unit"):
        (self.results / f"{name}.1.ids").write_text("".join(f"{test}\n" for test in ids))

    def attempt(self, number, passed=(), failed=(), text=CLAIM, name="unit", **others):
        """Write the results of an attempt; ``others``: a status with the ids of its tests."""
        with (self.results / f"{name}.{number}.subunit").open("ab") as raw:
            stream = subunit.StreamResultToBytes(raw)
            for test in failed:
                detail = {"file_name": "traceback", "mime_type": "text/plain;charset=utf8"}
                stream.status(test_id=test, file_bytes=text.encode(), **detail)
            for status, ids in {"success": passed, "fail": failed, **others}.items():
                for test in ids:
                    stream.status(test_id=test, test_status=status)

    def verdict(self, *arguments, ci=""):
        """Return the exit status, and the texts on standard output and standard error."""
        argv = ["verdict.py", str(self.results), *(arguments or ["unit"])]
        with (
            mock.patch.object(sys, "argv", argv),
            mock.patch.dict(os.environ, {"CI": ci}),
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            status = self.module.main()
        return status, out.getvalue(), err.getvalue()

    def line(self, *arguments, ci=""):
        """Return the last line and the exit status."""
        status, out, _ = self.verdict(*arguments, ci=ci)
        return out.splitlines()[-1], status

    def repeated(self):
        return self.module.Suite.load(self.results, "unit").repeated()


class CountTest(ResultsCase):
    def test_suites_and_checks_are_added_up(self):
        self.attempt(1, ["unit.a", "unit.b"], xfail=["unit.c"])
        self.attempt(1, ["functional.a"], name="functional")
        self.assertEqual(("9 passed, 0 failed, 0 skipped", 0), self.line("unit", "functional", "--passed", "5"))
        self.assertEqual(("4 passed, 1 failed, 0 skipped", 1), self.line("unit", "functional", "--failed", "1"))

    def test_a_failure_is_printed_with_its_traceback_and_the_end_of_stderr(self):
        (self.results / "unit.stderr").write_text("the broker refuses to start\n")
        self.attempt(1, ["unit.Some.a"], ["unit.Some.b"], uxsuccess=["unit.Some.c"])
        status, out, err = self.verdict()
        self.assertEqual((1, "1 passed, 2 failed, 0 skipped"), (status, out.splitlines()[-1]))
        self.assertIn(f"FAILED: unit.Some.b\n{CLAIM}", err)
        self.assertIn("the broker refuses to start", err)

    def test_a_suite_that_passed_prints_nothing_to_stderr(self):
        (self.results / "unit.stderr").write_text("a warning\n")
        self.attempt(1, ["unit.a"])
        self.assertEqual("", self.verdict()[2])

    def test_a_skip_fails_in_continuous_integration_only(self):
        self.attempt(1, ["unit.a"], skip=["unit.b"])
        self.assertEqual(("1 passed, 0 failed, 1 skipped", 0), self.line())
        self.assertEqual(("1 passed, 0 failed, 1 skipped", 1), self.line(ci="true"))

    def test_a_listed_test_without_a_result_is_a_failure(self):
        self.listed("unit.Some.a", "unit.Some.b", "unit.Some.c")
        self.attempt(1, ["unit.Some.a"], inprogress=["unit.Some.b"], exists=["unit.Some.c"])
        self.assertEqual(("1 passed, 2 failed, 0 skipped", 1), self.line())
        self.assertIn("FAILED: unit.Some.c\nthe test has no result", self.verdict()[2])

    def test_a_suite_without_tests_is_a_failure_and_is_printed_with_the_end_of_stderr(self):
        (self.results / "unit.stderr").write_text("the broker refuses to start\n")
        self.assertEqual(("0 passed, 1 failed, 0 skipped", 1), self.line())
        self.assertIn("the broker refuses to start", self.verdict()[2])


class FlakyTest(ResultsCase):
    def test_a_test_that_passes_in_the_second_attempt_is_flaky_and_counts_as_passed(self):
        self.attempt(1, ["unit.Some.a"], ["unit.Some.b"])
        self.attempt(2, ["unit.Some.a", "unit.Some.b"])
        expected = ["flaky: unit.Some.b", *CLAIM.splitlines(), "2 passed, 0 failed, 0 skipped"]
        status, out, err = self.verdict()
        self.assertEqual((0, expected, ""), (status, out.splitlines(), err))

    def test_a_test_that_fails_in_the_second_attempt_of_its_class_has_failed(self):
        self.attempt(1, ["unit.Some.a"], ["unit.Some.b"])
        self.attempt(2, ["unit.Some.b"], ["unit.Some.a"])
        self.assertEqual(("1 passed, 1 failed, 0 skipped", 1), self.line())

    def test_two_flaky_results_are_allowed_and_three_fail_the_run(self):
        ids = ["unit.Some.a", "unit.Other.b", "unit.More.c"]
        self.attempt(1, ["unit.c"], ids[:2])
        self.attempt(2, ids)
        self.assertEqual(("4 passed, 0 failed, 0 skipped", 0), self.line())
        self.attempt(1, (), ids[2:])
        self.assertEqual(("1 passed, 3 failed, 0 skipped", 1), self.line())

    def test_lost_or_duplicated_messages_are_never_flaky(self):
        self.attempt(1, (), ["unit.Some.a"], LOST)
        self.attempt(2, ["unit.Some.a"])
        self.assertEqual(("0 passed, 1 failed, 0 skipped", 1), self.line())

    def test_the_class_of_the_error_counts_and_not_its_text(self):
        self.attempt(1, (), ["unit.Some.a"], f"{CLAIM} : 6 duplicate, see LostOrDuplicated")
        self.attempt(2, ["unit.Some.a"])
        self.assertEqual(("1 passed, 0 failed, 0 skipped", 0), self.line())

    def test_lost_messages_are_never_flaky_regardless_of_later_errors(self):
        chained = f"{LOST}\n\nDuring handling of the above exception, another exception occurred:\n\n{CLAIM}"
        self.attempt(1, (), ["unit.Some.a"], chained)
        self.attempt(2, ["unit.Some.a"])
        self.assertEqual(1, self.line()[1])

    def test_a_class_whose_set_up_failed_once_is_one_flaky_result(self):
        self.listed("unit.Some.a", "unit.Some.b")
        self.attempt(1, (), [SET_UP])
        self.assertEqual(("0 passed, 3 failed, 0 skipped", 1), self.line())
        self.attempt(2, ["unit.Some.a", "unit.Some.b"])
        self.assertEqual(("3 passed, 0 failed, 0 skipped", 0), self.line())

    def test_a_class_whose_set_up_fails_twice_has_failed(self):
        self.listed("unit.Some.a")
        self.attempt(1, (), [SET_UP])
        self.attempt(2, (), [SET_UP])
        self.assertEqual(("0 passed, 2 failed, 0 skipped", 1), self.line())

    def test_a_test_whose_process_died_has_failed_even_if_it_passes_when_repeated(self):
        self.attempt(1, ["unit.Some.b"], inprogress=["unit.Some.a"])
        self.attempt(2, ["unit.Some.a"])
        self.assertEqual(("1 passed, 1 failed, 0 skipped", 1), self.line())

    def test_a_test_or_a_class_that_is_skipped_in_the_second_attempt_has_failed(self):
        self.attempt(1, ["unit.Other.b"], ["unit.Other.a", SET_UP])
        self.attempt(2, ["unit.Other.b"], skip=["unit.Other.a", "unit.Some.a"])
        for ci in ("", "true"):
            self.assertEqual(("1 passed, 2 failed, 1 skipped", 1), self.line(ci=ci))

    def test_a_failure_takes_precedence_over_another_result_of_the_same_attempt(self):
        self.attempt(1, ["unit.Some.a"], ["unit.Some.a", "unit.Some.b"])
        self.attempt(1, ["unit.Some.a", "unit.Some.b"])
        self.assertEqual(("0 passed, 2 failed, 0 skipped", 1), self.line())

    def test_lost_messages_in_a_group_of_errors_are_never_flaky(self):
        inner = ExceptionGroup("checks", [AssertionError("1 != 2"), checker.LostOrDuplicated("1 lost")])
        for number, error in enumerate((inner, ExceptionGroup("all", [inner]))):
            test = f"unit.Some.{number}"
            self.attempt(1, (), [test], "".join(traceback.format_exception(error)))
            self.attempt(2, [test])
        self.assertEqual(("0 passed, 2 failed, 0 skipped", 1), self.line())


class QuickstartTest(base.BaseTestCase):
    """The functional test of the quickstart checks its counts before its exit status."""

    def run_once(self, error=None, **counts):
        test = test_quickstart.QuickstartTest("test_ctrl_c_stops_everything")
        test.data = Path(self.useFixture(fixtures.TempDir()).path) / "data"
        stage = {"name": "from POST to row", "seconds": 9.0, "error": error}
        out = json.dumps({"duplicates": 0, "lost": 0, "stages": [stage], **counts})
        process = SimpleNamespace(returncode=1, communicate=lambda timeout: (out, None))
        with mock.patch.object(test, "start", return_value=process):
            test.run_once(lambda process, log: None)

    def test_lost_and_duplicated_messages_are_named_although_the_exit_status_is_1(self):
        self.assertRaises(checker.LostOrDuplicated, self.run_once, lost=1)
        self.assertRaises(checker.LostOrDuplicated, self.run_once, "the API refused a request", duplicates=1)

    def test_a_run_that_stops_early_has_lost_nothing(self):
        error = self.assertRaises(AssertionError, self.run_once, "the persister ended", lost=1)
        self.assertNotIsInstance(error, checker.LostOrDuplicated)


class RepeatedTest(ResultsCase):
    def test_a_class_is_repeated_as_a_whole_for_a_failed_test_and_for_its_set_up(self):
        ids = ["unit.Some.a", "unit.Other.a", "unit.Other.b", "unit.Missing.a", "unit.Good.a"]
        self.listed(*ids)
        self.attempt(1, ["unit.Other.a", "unit.Good.a"], [SET_UP, "unit.Other.b"])
        self.assertEqual(ids[:3], self.repeated())

    def test_lost_messages_and_a_process_that_died_are_not_repeated(self):
        self.attempt(1, (), ["unit.Lost.a"], LOST, inprogress=["unit.Died.a"])
        self.assertEqual([], self.repeated())

    def test_more_than_ten_classes_are_not_repeated(self):
        ids = [f"unit.Some{number}.a" for number in range(11)]
        self.attempt(1, (), ids[:10])
        self.assertEqual(10, len(self.repeated()))
        self.attempt(1, (), ids[10:])
        self.assertEqual([], self.repeated())


SOURCE = """\
import os, signal, unittest
from monasca_common.tests.periodic import periodic

class Good(unittest.TestCase):
    def test_a(self): pass

class Dying(unittest.TestCase):
    def test_a(self): os.kill(os.getpid(), signal.SIGKILL)
    def test_b(self): pass

class ClassStarting(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists("started"):
            os.mkdir("started")
            raise OSError("port taken")
    def test_a(self): pass

@periodic("the others are cheaper")
class Periodic(unittest.TestCase):
    def test_a(self): pass

class PartlyPeriodic(unittest.TestCase):
    def test_a(self): pass
    @periodic("the other one is cheaper")
    def test_b(self): pass

class Hanging(unittest.TestCase):
    def test_a(self): signal.pause()
"""


class SuiteTest(ResultsCase):
    """``tools/suite.py`` runs a package of tests with stestr."""

    def run_suite(self, *classes, source=SOURCE, arguments=(), python=sys.executable, **environ):
        package = self.results / "package"
        package.mkdir()
        (package / "__init__.py").touch()
        head, *rest = source.split("\n\n")
        chosen = [text for text in rest if text.partition("class ")[2].partition("(")[0] in classes]
        (package / "test_some.py").write_text("\n\n".join([head, *chosen]))
        command = [python, str(TOOLS / "suite.py"), "package", str(self.results), "unit", *arguments]
        environ = {"XDG_CACHE_HOME": str(self.results), "PATH": "/usr/bin:/bin", **environ}
        return subprocess.run(command, cwd=self.results, env=environ, capture_output=True, text=True, check=False)

    def test_periodic_classes_and_tests_run_only_with_all(self):
        self.run_suite("Periodic", "PartlyPeriodic")
        self.assertEqual(("1 passed, 0 failed, 0 skipped", 0), self.line())

    def test_all_runs_periodic_classes_and_tests(self):
        self.run_suite("Periodic", "PartlyPeriodic", arguments=["--all"])
        self.assertEqual(("3 passed, 0 failed, 0 skipped", 0), self.line())

    def test_a_class_whose_set_up_fails_once_is_repeated_and_flaky(self):
        self.run_suite("Good", "ClassStarting")
        _, out, _ = self.verdict()
        self.assertIn("flaky: setUpClass (package.test_some.ClassStarting)", out)
        self.assertEqual("3 passed, 0 failed, 0 skipped", out.splitlines()[-1])

    def test_a_worker_that_dies_fails_the_run_with_each_test_that_has_no_result(self):
        (self.results / ".stestr.conf").write_text("[DEFAULT]\ntest_path=package\nparallel_class=True\n")
        self.run_suite("Good", "Dying")
        self.assertEqual(("1 passed, 2 failed, 0 skipped", 1), self.line())

    def test_workers_use_the_interpreter_of_the_run(self):
        environment = self.results / "an environment"
        environment.symlink_to(sys.prefix)
        self.run_suite("Good", python=str(environment / "bin" / "python"), PYTHON="/bin/false")
        self.assertEqual(("1 passed, 0 failed, 0 skipped", 0), self.line())

    def test_damaged_times_are_replaced(self):
        stored = self.results / "monasca-common" / "stestr" / "unit" / ".stestr"
        stored.mkdir(parents=True)
        for name, content in {
            "format": "1\n",
            "next-stream": "0\n",
            "times.dbm.dir": "'unit",
            "times.dbm.dat": "",
        }.items():
            (stored / name).write_text(content)
        self.run_suite("Good")
        self.assertEqual(("1 passed, 0 failed, 0 skipped", 0), self.line())

    def test_a_run_that_hangs_is_ended_and_its_tests_have_no_result(self):
        self.run_suite("Hanging", arguments=["--limit", "4"])
        self.assertEqual(("0 passed, 1 failed, 0 skipped", 1), self.line())

    def test_a_module_that_cannot_be_imported_fails_the_run(self):
        done = self.run_suite(source="import nothing_of_this_name")
        self.assertIn("nothing_of_this_name", done.stderr)
        self.assertEqual(("0 passed, 1 failed, 0 skipped", 1), self.line())

    def test_a_module_that_the_other_interpreter_cannot_import_fails_the_run(self):
        done = self.run_suite(source="import nothing_of_this_name", arguments=["--python", sys.executable])
        self.assertIn("nothing_of_this_name", done.stderr)
        self.assertEqual(("0 passed, 1 failed, 0 skipped", 1), self.line())


class ScriptTest(base.BaseTestCase):
    """Run ``tools/run_tests.sh`` with programs that only record their arguments."""

    FAILED = "0 passed, 1 failed, 0 skipped"
    PROGRAMS = (
        "ruff",
        "mypy",
        "lint-imports",
        "bandit",
        "codespell",
        "reno",
        "sphinx-build",
        "java",
        "influxd",
        "chromium",
        "nginx",
        "promtool",
    )

    def run_script(self, *arguments, environment="make_environment() { :; }", **programs):
        """Return the exit status, the last line of standard output, and the arguments of each Python."""
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        for name in ("tools", "bin", "temporary"):
            (folder / name).mkdir()
        shutil.copy(TOOLS / "run_tests.sh", folder / "tools")
        (folder / "tools" / "environment.sh").write_text(f"say() {{ :; }}\n{environment}\n")
        noted = 'echo "$@" >> "$NOTED"'
        for name, body in {**dict.fromkeys(self.PROGRAMS, "exit 0"), "python": noted, **programs}.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / "bin" / name).chmod(0o700)
        environ = {"PATH": f"{folder}/bin:/usr/bin:/bin", "TMPDIR": f"{folder}/temporary", "NOTED": f"{folder}/noted"}
        command = ["bash", str(folder / "tools" / "run_tests.sh"), *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        calls = (folder / "noted").read_text().splitlines() if (folder / "noted").exists() else []
        return done.returncode, done.stdout.splitlines()[-1], calls

    def test_the_line_is_printed_if_the_environment_or_the_verdict_fails(self):
        status, line, _ = self.run_script("--unit", environment="make_environment() { exit 3; }")
        self.assertEqual((3, self.FAILED), (status, line))
        status, line, _ = self.run_script("--unit", python="exit 1")
        self.assertEqual((1, self.FAILED), (status, line))

    def test_the_verdict_is_the_last_line(self):
        line = "7 passed, 0 failed, 1 skipped"
        self.assertEqual((0, line), self.run_script("--unit", python=f"echo {line}")[:2])

    def test_checks_that_do_not_end_are_one_failure(self):
        _, _, calls = self.run_script(ruff='mkdir -p "$(echo "$TMPDIR"/tmp.*)/checks.count"')
        self.assertIn("--passed 0 --failed 1", calls[-1])

    def test_the_suites_share_the_time_of_the_run(self):
        for arguments, allowed in (([], 3600), (["--all"], 9000)):
            _, _, calls = self.run_script(*arguments)
            limits = [int(re.search(r"--limit (\d+)", call)[1]) for call in calls if "suite.py" in call]
            self.assertEqual(2, len(limits))
            self.assertTrue(all(allowed - 60 <= limit <= allowed for limit in limits), limits)
