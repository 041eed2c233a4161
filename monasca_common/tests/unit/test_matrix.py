# SPDX-License-Identifier: Apache-2.0
"""The matrix of versions: which cells there are, what counts as failed, and what is printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fixtures
from oslotest import base

TOOLS = Path(__file__).parents[3] / "tools"

SETUP = """
    Programming Language :: Python :: 3
    Programming Language :: Python :: 3.11
    Programming Language :: Python :: 3.12
"""
PYTHONS = {"3.11": "/usr/bin/python3.11", "3.12": "/usr/bin/python3.12"}

PROGRAM = """
import sys
from testtools import StreamSummary
from subunit import StreamResultToBytes
result = StreamResultToBytes(sys.stdout.buffer)
for name, status in {statuses}:
    result.status(test_id=name, test_status="inprogress")
    reason = dict(file_name="reason", file_bytes=b"lacks it", eof=True, mime_type="text/plain; charset=utf8")
    result.status(test_id=name, test_status=status, **reason)
{end}
"""


class MatrixCase(base.BaseTestCase):
    """``self.module`` has the tools' modules, which are no package."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(TOOLS), *sys.path]))
        import matrix
        import matrix_cells
        import matrix_environment
        import matrix_run
        import matrix_table

        self.matrix, self.cells, self.runs, self.table = matrix, matrix_cells, matrix_run, matrix_table
        self.environment = matrix_environment

    def axes(self, oldest="2.1.0", newest="2.9.0"):
        requirements = f"cliff>=4\nconfluent-kafka>={oldest},<3 # Apache-2.0\n"
        return self.cells.axes(SETUP, requirements, f"confluent-kafka=={newest}\n", "4.3.0")


class PlanTest(MatrixCase):
    def planned(self, pythons=PYTHONS, **versions):
        return {cell.name: cell for cell in self.cells.plan(self.axes(**versions), pythons)}

    def test_each_axis_varies_by_itself_beside_the_oldest_and_the_newest(self):
        old, new = self.cells.KAFKA_OLDEST, self.cells.KAFKA_NEWEST
        self.assertEqual(
            {
                "base": ("4.3.0", "2.9.0", "3.11"),
                "python-3.12": ("4.3.0", "2.9.0", "3.12"),
                "python-3.13": ("4.3.0", "2.9.0", "3.13"),
                "confluent-kafka-2.1.0": ("4.3.0", "2.1.0", "3.11"),
                f"kafka-{old}": (old, "2.9.0", "3.11"),
                f"kafka-{new}": (new, "2.9.0", "3.11"),
                "oldest": (old, "2.1.0", "3.11"),
                "newest": (new, "2.9.0", "3.12"),
            },
            {name: (cell.kafka, cell.confluent_kafka, cell.python) for name, cell in self.planned().items()},
        )

    def test_no_combination_stands_there_twice(self):
        cells = self.planned(oldest="2.9.0").values()
        combinations = [(cell.kafka, cell.confluent_kafka, cell.python) for cell in cells]
        self.assertEqual(len(combinations), len(set(combinations)))

    def test_a_python_that_is_missing_is_the_reason_of_its_cells(self):
        planned = self.planned({"3.11": "python3.11"})
        self.assertEqual(["python-3.12", "python-3.13"], [name for name, cell in planned.items() if cell.reason])
        self.assertIn("no python3.12 on the PATH or in pyenv", planned["python-3.12"].reason)
        self.assertEqual("3.11", planned["newest"].python)

    def test_only_a_python_that_nobody_promised_may_be_missing(self):
        self.assertEqual(["python-3.13"], [name for name, cell in self.planned({}).items() if not cell.required])
        [asked_for] = self.cells.chosen(tuple(self.planned({}).values()), ["python-3.13"])
        self.assertTrue(asked_for.required)

    def test_an_unknown_cell_is_refused_with_the_known_ones(self):
        refusal = str(self.assertRaises(ValueError, self.cells.chosen, tuple(self.planned().values()), ["python-4"]))
        self.assertIn("python-4", refusal)
        self.assertIn("oldest", refusal)

    def test_versions_that_nobody_declares_are_an_error_that_names_the_file(self):
        for texts, named in {
            ("", "confluent-kafka>=1\n", "confluent-kafka==2\n"): "setup.cfg",
            (SETUP, "cliff\n", "confluent-kafka==2\n"): "confluent-kafka>=",
            (SETUP, "confluent-kafka>=1\n", "cliff==2\n"): "confluent-kafka==",
        }.items():
            self.assertIn(named, str(self.assertRaises(ValueError, self.cells.axes, *texts, "4.3.0")))


class EnvironmentTest(MatrixCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.EnvironmentVariable("XDG_CACHE_HOME", str(self.folder / "cache")))
        self.cache = self.folder / "cache" / "monasca-common" / "matrix"

    def python(self, pip):
        """A program that answers like the interpreter of a Python 3.12; ``pip`` is what it does as pip, in sh."""
        program = self.folder / "python"
        program.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo cpython-312 && exit\n{pip}\n')
        program.chmod(0o755)
        return str(program)

    def made(self, pip):
        return self.environment.confluent_kafka(self.python(pip), "2.9.0", lambda line: None)

    def test_what_the_tests_need_is_installed_and_the_client_and_ours_are_not(self):
        wanted = self.environment.requirements(TOOLS.parent)
        names = {line.replace(">", "[").partition("[")[0] for line in wanted}
        self.assertLessEqual({"pyspark", "oslotest", "python-subunit", "cryptography", "oslo.config"}, names)
        self.assertEqual(set(), {"confluent-kafka", "monasca-common", "keystone"} & names)

    def test_a_version_without_a_wheel_is_the_reason_and_leaves_nothing(self):
        pip = "echo 'ERROR: No matching distribution found for confluent-kafka==2.9.0' >&2; exit 1"
        refusal = str(self.assertRaises(self.environment.EnvironmentUnavailable, self.made, pip))
        self.assertIn("No matching distribution found for confluent-kafka==2.9.0", refusal)
        self.assertFalse((self.cache / "confluent-kafka-2.9.0-cpython-312").exists())

    def test_what_is_there_is_not_installed_again(self):
        folder = self.made(f'mkdir -p "{self.cache}/confluent-kafka-2.9.0-cpython-312"')
        self.assertEqual(folder, self.made("exit 1"))


class OutcomeTest(MatrixCase):
    def setUp(self):
        super().setUp()
        self.said = []

    def outcome(self, name="base", *, contracts=None, job=None, reason="", required=True):
        cell = self.cells.Cell(name, "4.3.0", "2.9.0", "3.11", required=required)
        return self.runs.Outcome(cell, contracts, job, reason)

    def run_program(self, statuses, end="", timeout=60):
        source = PROGRAM.format(statuses=statuses, end=end)
        return self.runs.run_tests([sys.executable, "-c", source], {}, Path.cwd(), timeout, self.said.append)

    def test_what_the_tests_say_is_counted(self):
        statuses = [("a", "success"), ("b", "fail"), ("c", "skip"), ("d", "skip"), ("e", "xfail")]
        counts = self.run_program(statuses)
        self.assertEqual((1, 1, 2, 1), (counts.passed, counts.failed, counts.skipped, counts.lacking))
        self.assertEqual(["lacks it"], counts.reasons)
        self.assertIn("FAILED: b", "\n".join(self.said))

    def test_a_run_that_breaks_off_is_a_failure(self):
        for end in ("sys.exit(3)", "import os; os.abort()"):
            counts = self.run_program([("a", "success")], end)
            self.assertEqual((1, 1), (counts.passed, counts.failed))
        self.assertEqual(1, self.run_program([]).failed)

    def test_a_run_that_does_not_end_is_ended_and_has_failed(self):
        counts = self.run_program([("a", "success")], "import time; sys.stdout.flush(); time.sleep(600)", timeout=1)
        self.assertEqual(1, counts.failed)
        self.assertIn("it did not end within 1 s", counts.reasons)

    def test_the_exit_status_says_whether_all_ran_and_passed(self):
        passed, failed = self.runs.Counts(passed=2), self.runs.Counts(passed=1, failed=1)
        for status, outcomes in {
            0: [self.outcome(contracts=passed, job=passed), self.outcome(reason="no Python", required=False)],
            1: [self.outcome(contracts=passed, job=failed), self.outcome(reason="no Python")],
            3: [self.outcome(contracts=passed), self.outcome(reason="no Python")],
        }.items():
            self.assertEqual(status, self.matrix.status(outcomes))

    def test_what_ran_already_does_not_run_again(self):
        file = Path(self.useFixture(fixtures.TempDir()).path, "results.json")
        kept = self.outcome("one", contracts=self.runs.Counts(passed=4, reasons=["Kafka lacks it"]))
        self.runs.Results(file).keep(kept)
        results = self.runs.Results(file)
        other = self.cells.Cell("two", "3.9.2", "2.9.0", "3.11")
        self.assertEqual((True, False), (results.has(kept.cell), results.has(other)))
        self.assertEqual(kept, results.of(kept.cell))
        results.keep(self.runs.Outcome(other, reason="no Python"))
        self.assertEqual("no Python", self.runs.Results(file).of(other).reason)

    def test_the_tables_have_the_counts_and_the_reasons(self):
        lacking = self.runs.Counts(passed=4, skipped=2, seconds=7.4, reasons=["Kafka lacks it"])
        outcomes = [
            self.outcome("one", contracts=lacking, job=self.runs.Counts(passed=1)),
            self.outcome("two", reason="no Python"),
        ]
        for shown in (self.table.text(outcomes), self.table.fragment(outcomes)):
            for part in ("4 passed, 0 failed, 2 skipped (7 s)", "one: Kafka lacks it", "not run: no Python"):
                self.assertIn(part, shown)


class CommandTest(base.BaseTestCase):
    def matrix(self, *arguments, **environ):
        command = [sys.executable, str(TOOLS / "matrix.py"), *arguments]
        environ = {**os.environ, **environ}
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environ)
        return done.returncode, done.stdout, done.stderr

    def test_the_list_names_every_cell_and_runs_none(self):
        status, shown, said = self.matrix("--list")
        self.assertEqual((0, ""), (status, said))
        for part in ("base", "python-3.12", "newest"):
            self.assertIn(part, shown)

    def test_a_wrong_cell_is_refused(self):
        status, _, said = self.matrix("python-2.7")
        self.assertEqual(2, status)
        self.assertIn("python-2.7", said)

    def test_a_cell_that_cannot_run_is_told_with_its_reason(self):
        other = "3.13" if sys.version_info[:2] == (3, 12) else "3.12"
        nowhere = self.useFixture(fixtures.TempDir()).path
        status, shown, said = self.matrix(f"python-{other}", "--json", PATH=nowhere, PYENV_ROOT=nowhere)
        [outcome] = json.loads(shown)
        self.assertEqual((3, None, None), (status, outcome["contracts"], outcome["job"]))
        for told in (outcome["reason"], said):
            self.assertIn(f"no python{other} on the PATH or in pyenv: install it", told)
