# SPDX-License-Identifier: Apache-2.0
"""The run of the tempest plugins: which suites there are, what counts as passed, and what is printed."""

import argparse
import configparser
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import fixtures
import sqlalchemy as sa
import subunit
from oslotest import base

from monasca_common.api.settings import api_settings, read_configuration
from monasca_common.persister.settings import persister_settings
from monasca_common.pipeline.evaluate.settings import evaluate_settings
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import storage_settings
from monasca_common.storage.sql.tables import events, logs, metadata

TOOLS = Path(__file__).parents[3] / "tools"
OWN_TESTS = Path(__file__).parents[1] / "tempest" / "api"

METRIC = "monasca_tempest_tests.tests.api.test_metrics.TestMetrics.test_create[gate]"
NAME = "monasca_tempest_tests.tests.api.test_metrics_names.TestMetricsNames.test_list[gate]"
LOG = "monasca_tempest_tests.tests.log_api.test_single.TestSingleLog.test_small_message[gate,smoke]"
ALARM = "monasca_tempest_tests.tests.api.test_alarms.TestAlarms.test_list[gate]"
COUNT = "monasca_tempest_tests.tests.api.test_alarms_count.TestAlarmsCount.test_count[gate]"
PACKAGE = "monasca_tempest_tests.tests."
OWN = "monasca_common.tests.tempest.api.test_metrics.TestReadBack.test_a_bulk"
RACE = "monasca_tempest_tests.tests.api.test_alarms.TestAlarms.test_verify_deterministic_alarm[gate]"
SHIPPED = (METRIC, NAME, LOG, ALARM, COUNT)


class TempestCase(base.BaseTestCase):
    """``self.<name>`` is the tool of that name, which is in no package."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(TOOLS / "tempest_tests"), *sys.path, str(TOOLS)]))
        import run_tempest
        import tempest_results
        import tempest_run
        import tempest_search
        import tempest_stack
        import tempest_suites
        import tempest_table
        import tempest_warm_up

        self.command, self.results, self.suites, self.table = (
            run_tempest,
            tempest_results,
            tempest_suites,
            tempest_table,
        )
        self.runs, self.search, self.stack = tempest_run, tempest_search, tempest_stack
        self.warm_up = tempest_warm_up

    def measured(self, *outcomes, names=("metrics", "names")):
        """The results by suite, after a run of these suites in which the tests ended so: (id, status, detail)."""
        results = [self.results.TestResult(*outcome) for outcome in outcomes]
        return self.results.by_suite(SHIPPED, self.suites.chosen(names), results)


class SuitesTest(TempestCase):
    def test_a_test_belongs_to_the_suite_of_its_module_and_to_no_other(self):
        for test, name in zip(SHIPPED, ("metrics", "names", "logs", "alarms", "alarm-counts"), strict=True):
            self.assertEqual([name], [suite.name for suite in self.suites.SUITES if suite.has(test)])

    def test_a_class_that_failed_as_a_whole_belongs_to_its_suite(self):
        failed = "setUpClass (monasca_tempest_tests.tests.api.test_alarms.TestAlarms)"
        self.assertEqual("alarms", self.suites.suite_of(failed).name)

    def test_all_run_unless_some_are_named_by_suite_or_plugin(self):
        self.assertEqual(self.suites.SUITES, self.suites.chosen(()))
        self.assertEqual(["alarms"], [suite.name for suite in self.suites.chosen(["alarms"])])
        own = self.suites.chosen(["own"])
        self.assertEqual(("own-metrics", {"own"}), (own[0].name, {suite.plugin for suite in own}))
        self.assertEqual(set(self.suites.SUITES), {*own, *self.suites.chosen(["public"])})

    def test_the_same_module_of_two_plugins_is_two_suites(self):
        self.assertEqual("own-metrics", self.suites.suite_of(OWN).name)
        self.assertEqual("metrics", self.suites.suite_of(METRIC).name)

    def test_each_module_of_our_plugin_is_in_a_suite(self):
        modules = {path.stem for path in OWN_TESTS.glob("test_*.py")}
        own = [module for suite in self.suites.chosen(["own"]) for module in suite.modules]
        self.assertEqual(sorted(f"api.{module}" for module in modules), sorted(own))

    def test_of_a_test_that_gives_too_little_time_it_is_known_how_little(self):
        self.assertIn("one second", self.suites.race(RACE))
        self.assertIsNone(self.suites.race(ALARM))

    def test_an_unknown_suite_is_refused_with_the_known_ones(self):
        refusal = str(self.assertRaises(ValueError, self.suites.chosen, ["metric"]))
        self.assertIn("no suite metric:", refusal)
        self.assertIn("metrics, names", refusal)


class ResultsTest(TempestCase):
    def test_each_test_is_passed_failed_or_skipped_with_a_reason(self):
        stream = io.BytesIO()
        told = subunit.StreamResultToBytes(stream)
        text = "text/plain; charset=utf8"
        told.status(test_id=METRIC, test_status="exists")
        for test, status, name, detail in (
            (METRIC, "success", "measured", b"took 1 s"),
            (NAME, "fail", "traceback", b"Traceback\nMismatchError: 200 != 500"),
            (LOG, "skip", "reason", b"no search"),
        ):
            told.status(test_id=test, test_status="inprogress")
            told.status(test_id=test, file_name=name, file_bytes=detail, eof=True, mime_type=text)
            told.status(test_id=test, test_status=status)
        told.status(test_id=ALARM, test_status="inprogress")  # and the run broke off
        stream.seek(0)
        found = []
        self.results.read(stream, found.append)
        self.assertEqual(
            [(METRIC, "passed"), (NAME, "failed"), (LOG, "skipped"), (ALARM, "failed")],
            [(result.test, result.status) for result in found],
        )
        self.assertEqual(("took 1 s", "no search"), (found[0].detail, found[2].detail))
        self.assertEqual("MismatchError: 200 != 500", found[1].detail.splitlines()[-1])

    def test_a_suite_is_whole_when_every_test_that_is_shipped_has_passed(self):
        for status, whole in {"passed": True, "raced": True, "failed": False, "skipped": False}.items():
            metrics = {suite.name: suite for suite in self.measured((METRIC, status, "why"))}["metrics"]
            self.assertEqual(whole, metrics.whole)

    def test_a_test_of_which_nobody_heard_is_missing(self):
        metrics, names, alarms = (
            suite for suite in self.measured((METRIC, "passed")) if suite.name in ("metrics", "names", "alarms")
        )
        self.assertEqual((0, 1, 0), (metrics.missing, names.missing, alarms.missing))
        self.assertFalse(names.whole)

    def test_a_module_that_no_suite_has_is_an_error(self):
        new = "monasca_tempest_tests.tests.api.test_new.TestNew.test_it"
        self.assertRaises(ValueError, self.results.by_suite, [new], (), ())

    def test_the_exit_status_is_that_of_the_worst(self):
        passed = [(METRIC, "passed"), (NAME, "passed")]
        for outcomes, status in (
            (passed, 0),
            ([(METRIC, "passed"), (NAME, "raced", "x")], 0),
            ([(METRIC, "passed"), (NAME, "failed", "x")], 1),
            ([(METRIC, "passed"), (NAME, "skipped", "x")], 1),
            ([(METRIC, "passed")], 1),
            ([], 3),
        ):
            self.assertEqual(status, self.command.status(self.measured(*outcomes)))


class StreamTest(TempestCase):
    def test_what_is_written_is_read_again_and_what_nobody_heard_of_has_failed(self):
        results = [
            self.results.TestResult(METRIC, "passed", "passed when it ran alone: slow"),
            self.results.TestResult(NAME, "failed", "a\nb: c"),
            self.results.TestResult(LOG, "skipped", "no search"),
        ]
        stream, found = io.BytesIO(), []
        self.results.write(stream, (*SHIPPED[:3], ALARM), results)
        stream.seek(0)
        self.results.read(stream, found.append)
        self.assertEqual(
            [(METRIC, "passed", ""), (NAME, "failed", "a\nb: c"), (LOG, "skipped", "no search")],
            [(result.test, result.status, result.detail) for result in found[:3]],
        )
        self.assertEqual((ALARM, "failed"), (found[3].test, found[3].status))
        self.assertIn("nobody heard of it", found[3].detail)


class WarmUpTest(TempestCase):
    def test_it_ends_with_the_first_alarm_and_leaves_no_definition(self):
        called, histories = [], [[], [], [{"id": 1}]]

        def call(method, path, body):
            called.append((method, path))
            return {"id": "d", "elements": histories.pop(0) if method == "GET" else None}

        self.useFixture(fixtures.MonkeyPatch("tempest_warm_up._LOOK_EVERY_SECONDS", 0))
        self.warm_up.warm_up(call, lambda: None)
        looks = [("GET", "/alarms/state-history")] * 3
        posts = [("POST", "/alarm-definitions"), ("POST", "/metrics")]
        self.assertEqual([*posts, *looks, ("DELETE", "/alarm-definitions/d")], called)

    def test_without_an_alarm_it_ends_with_an_error_and_with_that_of_a_service_at_once(self):
        def call(*_):
            return {"id": "d", "elements": []}

        def ended():
            raise self.runs.ServiceFailed("the evaluator ended")

        error = self.assertRaises(self.runs.ServiceFailed, self.warm_up.warm_up, call, lambda: None, 0)
        self.assertIn("no alarm within 0 s", str(error))
        error = self.assertRaises(self.runs.ServiceFailed, self.warm_up.warm_up, call, ended)
        self.assertEqual("the evaluator ended", str(error))


class TableTest(TempestCase):
    def test_each_suite_has_a_row_and_what_is_not_built_says_why(self):
        lines = self.table.text(self.measured((METRIC, "passed"), (NAME, "failed", "a\nb: c"))).splitlines()
        self.assertIn("Suite                 Tests  Passed  Raced  Failed  Skipped", lines)
        self.assertIn("metrics               1      1       0      0       0", lines)
        self.assertIn("names                 1      0       0      1       0", lines)
        self.assertIn("alarms                1      not run", lines)
        self.assertIn("all that ran          2      1       0      1       0", lines)
        self.assertEqual(f"* names failed: {NAME}: b: c", lines[-1])

    def test_of_a_plugin_that_did_not_run_there_is_no_row(self):
        self.assertNotIn("own-metrics", self.table.text(self.measured((METRIC, "passed"))))

    def test_what_passed_when_it_ran_alone_stands_below(self):
        shown = self.table.text(self.measured((METRIC, "passed", "passed when it ran alone: slow")))
        self.assertIn(f"* metrics: {METRIC} passed when it ran alone: slow", shown)

    def test_what_raced_has_a_column_and_its_reason_below(self):
        shown = self.table.text(self.measured((METRIC, "raced", "it looks too early")))
        self.assertIn("metrics               1      0       1      0       0", shown.splitlines())
        self.assertIn(f"* metrics raced: {METRIC}: it looks too early", shown)

    def test_a_reason_stands_once_with_its_number_of_tests(self):
        suites = self.measured((LOG, "skipped", "no search"), (LOG, "skipped", "no search"), names=["logs"])
        self.assertIn("* logs skipped: no search (2 tests)", self.table.text(suites))

    def test_what_did_not_run_stands_below(self):
        self.assertIn("* names: 1 test did not run", self.table.text(self.measured((METRIC, "passed"))))

    def test_the_documentation_gets_the_same_as_a_list_table(self):
        fragment = self.table.fragment(self.measured((METRIC, "passed"), (NAME, "passed")), "the plugin 2.7.0")
        self.assertIn("the plugin 2.7.0.\n", fragment)
        self.assertIn("   * - metrics\n     - 1\n     - 1\n     - 0\n     - 0\n     - 0\n", fragment)
        self.assertIn("   * - alarms\n     - 1\n     - not run\n     -\n     -\n     -\n", fragment)


class ConfigurationTest(TempestCase):
    def test_our_services_read_theirs_and_take_metrics_11_days_ahead(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, "monasca.conf")
        url = "postgresql://monasca@127.0.0.1/monasca"
        listening = (7, 8, 9)
        path.write_text(
            self.stack.service_configuration("127.0.0.1:9", "postgresql", url, "http://127.0.0.1:5", listening)
        )
        conf = read_configuration([str(path)])
        self.assertEqual((7, "keystone"), (api_settings(conf).port, api_settings(conf).auth_strategy))
        storage = storage_settings(conf)
        self.assertEqual(("postgresql", url), (storage.driver, storage.connection))
        self.assertGreaterEqual(storage.future_tolerance_seconds, 11 * 86_400)
        persister = persister_settings(conf)
        self.assertEqual((8, set(Kind)), (persister.status.port, {group.kind for group in persister.groups}))
        topics = {topic for group in persister.groups for topic in group.consumer.topics}
        self.assertLessEqual({"metrics", "log", "monevents"}, topics)
        evaluator = evaluate_settings(conf)
        self.assertEqual((9, url), (evaluator.stream.status.port, evaluator.stream.connection))
        self.assertIn(evaluator.alarm_transitions_topic, topics)

    def test_tempest_makes_users_of_its_own_in_keystone_alone(self):
        read = configparser.ConfigParser()
        read.read_string(self.stack.tempest_configuration("http://127.0.0.1:5/v3", "p", Path("/a")))
        self.assertEqual(("http://127.0.0.1:5/v3", "p"), (read["identity"]["uri_v3"], read["auth"]["admin_password"]))
        self.assertEqual({"False"}, set(read["service_available"].values()))


class RaceTest(TempestCase):
    LATE = "File x\ntesttools.matchers._impl.MismatchError: 'ALARM' != 'OK'"

    def results_of(self, outcomes):
        """What counts of tests that end so, (status, detail) one run after the other; and which ran together."""
        ran = []

        def run(tests, *, concurrency, timeout):
            ran.append((sorted(tests), concurrency))
            return [self.results.TestResult(test, *outcomes[test].pop(0)) for test in tests]

        arguments = argparse.Namespace(concurrency=2, timeout=9)
        results = self.command._run(SimpleNamespace(run=run), list(outcomes), arguments)
        return {result.test: result for result in results}, ran

    def test_who_lost_a_listed_race_runs_once_more_alone_and_others_do_not(self):
        outcomes = {METRIC: [("failed", self.LATE)], ALARM: [("passed",)], RACE: [("failed", self.LATE), ("passed",)]}
        results, ran = self.results_of(outcomes)
        self.assertEqual([(sorted(outcomes), 2), ([RACE], 1)], ran)
        self.assertEqual(["failed", "passed", "passed"], [results[test].status for test in (METRIC, ALARM, RACE)])
        self.assertIn("passed when it ran alone: it looks for a state one second", results[RACE].detail)

    def test_who_looked_too_early_twice_has_raced_with_the_time_that_was_measured(self):
        results, _ = self.results_of({RACE: [("failed", self.LATE)] * 2})
        self.assertEqual("raced", results[RACE].status)
        self.assertIn("2.6 s were measured", results[RACE].detail)

    def test_another_failure_of_a_listed_test_is_a_failure(self):
        for other in ("MismatchError: 200 != 500", "tempest.lib.exceptions.ServerFault: Got server fault"):
            results, _ = self.results_of({RACE: [("failed", self.LATE), ("failed", other)]})
            self.assertEqual("failed", results[RACE].status)

    def test_a_listed_one_that_passes_is_told(self):
        results, ran = self.results_of({RACE: [("passed",)], ALARM: [("passed",)]})
        self.assertEqual(1, len(ran))
        self.assertIn("passed, and is listed as a race", results[RACE].detail)
        self.assertEqual("", results[ALARM].detail)


class SearchTest(TempestCase):
    def test_it_reads_what_the_plugin_asks(self):
        index = '{"index" : "*", "search_type" : "dfs_query_then_fetch"}'
        for body, asked in (
            (f'\n{index}\n{{"query" : {{"match" : {{"message":"abc"}}}}}}\n', ("message", "abc")),
            (f'\n  {index}\n   {{"query" : {{"match" : {{"event_type":" a.b "}}}}}}\n', ("event_type", " a.b ")),
        ):
            self.assertEqual(asked, self.search.query_of(body))

    def test_it_finds_what_is_stored(self):
        row = {"time": 1, "tenant": "t", "dimensions": "{}"}
        engine = sa.create_engine("sqlite://")
        with engine.begin() as connection:
            metadata.create_all(connection, [logs, events])
            for name in (b"1", b"2"):
                message = f"abc%{name.decode()} more"
                log = {**row, "message_id": name, "region": "r", "message": message, "fields": "{}"}
                event = {**row, "message_id": name, "event_type": f"a.{name.decode()}", "payload": "{}"}
                connection.execute(sa.insert(logs), log)
                connection.execute(sa.insert(events), event)
            self.assertEqual(
                [{"_source": {"tenant": "t", "message": "abc%1 more"}}],
                self.search.find(connection, "message", "abc%1"),
            )
            self.assertEqual([], self.search.find(connection, "message", "ab%1"))
            self.assertEqual(
                [{"_source": {"tenant": "t", "event_type": "a.2"}}], self.search.find(connection, "event_type", " a.2 ")
            )
            self.assertRaises(ValueError, self.search.find, connection, "host", "a")


class RunTest(TempestCase):
    def run_of(self, program):
        """A run of what answers in tempest's place, in sh."""
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        made = folder / "bin" / "tempest"
        made.parent.mkdir()
        made.write_text(f'#!/bin/sh\n[ "$1" = init ] && mkdir -p "$2/etc" && exit\n{program}\n')
        made.chmod(0o755)
        return folder, self.runs.TempestRun(
            made.with_name("python"), folder, "[auth]\n", lambda line: None, package=PACKAGE
        )

    def test_it_has_a_home_and_a_configuration_of_its_own(self):
        folder, run = self.run_of(f'echo log; echo "{METRIC}"; echo "$HOME" > "$HOME/home"')
        self.assertEqual([METRIC], run.shipped())
        self.assertEqual(f"{folder}\n", (folder / "home").read_text())
        self.assertEqual("[auth]\n", (folder / "tempest" / "etc" / "tempest.conf").read_text())

    def test_it_runs_the_tests_that_it_is_given(self):
        folder, run = self.run_of('echo "$@" > "$HOME/arguments"')
        self.assertEqual([], run.run([METRIC, LOG], concurrency=3, timeout=600))
        listed = folder / "tempest" / "tests.txt"
        self.assertEqual([METRIC, LOG], listed.read_text().splitlines())
        self.assertEqual(f"run --subunit --concurrency 3 --load-list {listed}\n", (folder / "arguments").read_text())

    def test_what_does_not_end_in_time_is_ended(self):
        _, run = self.run_of("sleep 600 & wait")
        self.assertEqual([], run.run([METRIC], concurrency=1, timeout=0.05))

    def test_a_tempest_that_fails_is_an_error_with_what_it_said(self):
        _, run = self.run_of("echo no such option >&2; exit 2")
        self.assertIn("no such option", str(self.assertRaises(self.runs.ServiceFailed, run.shipped)))


class CommandTest(TempestCase):
    def ran(self, *arguments):
        self.useFixture(fixtures.MonkeyPatch("sys.argv", ["tools/tempest_tests", *arguments]))
        out, error = (self.useFixture(fixtures.StringStream(name)).stream for name in ("out", "error"))
        with fixtures.MonkeyPatch("sys.stdout", out), fixtures.MonkeyPatch("sys.stderr", error):
            status = self.command.main()
        for stream in (out, error):
            stream.seek(0)
        return status, out.read(), error.read()

    def test_it_prints_the_table_or_json(self):
        measured = self.measured((METRIC, "passed"), (NAME, "passed"))
        self.useFixture(fixtures.MonkeyPatch("run_tempest._measure", lambda *_: measured))
        status, out, _ = self.ran()
        self.assertEqual((0, f"{self.table.text(measured)}\n"), (status, out))
        parsed = json.loads(self.ran("--json")[1])
        self.assertEqual(
            [{"test": METRIC, "status": "passed", "detail": ""}],
            next(suite["results"] for suite in parsed if suite["name"] == "metrics"),
        )

    def test_the_table_for_the_documentation_names_the_versions(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, "tempest.inc")
        self.useFixture(fixtures.MonkeyPatch("run_tempest._measure", lambda *_: self.measured((METRIC, "passed"))))
        self.ran("--rst", str(path), "--database", "postgresql")
        self.assertRegex(path.read_text(), r"\nmonasca-tempest-plugin 2\.[\d.]+, tempest [\d.]+, postgresql\.\n")

    def test_a_wrong_argument_and_what_cannot_run_have_their_own_status(self):
        self.assertEqual(2, self.ran("metric")[0])
        self.assertEqual(2, self.ran("--keep", str(TOOLS))[0])

        def fail(*_):
            raise self.runs.ServiceFailed("no Keystone")

        self.useFixture(fixtures.MonkeyPatch("run_tempest._measure", fail))
        self.assertEqual((3, "", "tools/tempest_tests: no Keystone\n"), self.ran())

    def test_the_help_names_the_exit_statuses(self):
        out = self.useFixture(fixtures.StringStream("out")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.argv", ["tools/tempest_tests", "--help"]))
        with fixtures.MonkeyPatch("sys.stdout", out):
            self.assertRaises(SystemExit, self.command.main)
        out.seek(0)
        self.assertIn("Exit status: 0 when", out.read())
