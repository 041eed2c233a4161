# SPDX-License-Identifier: Apache-2.0
"""The run of the tempest plugins: the tests that run, the results that count as passed, and the output."""

import configparser
import contextlib
import sys
from pathlib import Path

import fixtures
import sqlalchemy as sa
from oslotest import base

from monasca_common.api.settings import api_settings, read_configuration
from monasca_common.persister.settings import persister_settings
from monasca_common.pipeline.evaluate.settings import evaluate_settings
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import storage_settings
from monasca_common.storage.sql.tables import events, logs, metadata

TOOLS = Path(__file__).parents[3] / "tools"

PACKAGE = "monasca_common.tests.tempest."
METRIC, NAME, ALARM = (
    f"{PACKAGE}api.{test}" for test in ("test_a.TestA.test_b", "test_a.TestA.test_c", "test_d.TestD.e")
)

# Scripts in place of tempest and stestr. A file with the name of a test contains its next result.
PROGRAM = """#!{python}
import os, sys
from pathlib import Path
home, words = Path(os.environ["HOME"]), sys.argv[1:]
with open(home / "commands", "a") as commands:
    print(*words, file=commands)
if words[0] == "init":
    Path(words[1], "etc").mkdir(parents=True)
elif "--list-tests" in words:
    print("a line of a log", *{tests}, sep="\\n")
elif words[0] == "run":
    {run}
else:
    from subunit import StreamResultToBytes
    result = StreamResultToBytes(sys.stdout.buffer)
    for test in (home / "tempest" / "tests.txt").read_text().split():
        status = home / test
        result.status(test_id=test, test_status=status.read_text() if status.exists() else "success")
        status.unlink(missing_ok=True)
"""


class TempestCase(base.BaseTestCase):
    """``self.<name>`` is the tool with that name, which is in no package."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(TOOLS / "tempest_tests"), *sys.path, str(TOOLS)]))
        import run_tempest
        import tempest_run
        import tempest_search
        import tempest_stack
        import tempest_warm_up

        self.command, self.runs, self.search = run_tempest, tempest_run, tempest_search
        self.stack, self.warm_up = tempest_stack, tempest_warm_up
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)

    def run_of(self, *tests, run="pass"):
        """Run a program, which is a script, in place of tempest with these tests."""
        (self.folder / "bin").mkdir()
        for name in ("tempest", "stestr"):
            program = self.folder / "bin" / name
            program.write_text(PROGRAM.format(python=sys.executable, tests=list(tests), run=run))
            program.chmod(0o755)
        return self.runs.TempestRun(self.folder / "bin" / "python", self.folder, "[auth]\n")

    def commands(self):
        return (self.folder / "commands").read_text().splitlines()


class RunTest(TempestCase):
    def test_a_run_has_its_own_home_and_configuration(self):
        self.assertEqual([METRIC], self.run_of(METRIC).listed(PACKAGE))
        self.assertEqual("[auth]\n", (self.folder / "tempest" / "etc" / "tempest.conf").read_text())

    def test_a_run_skips_the_excluded_tests(self):
        self.run_of(METRIC).listed(PACKAGE)
        excluded = Path(self.commands()[-1].rpartition("--exclude-list ")[2])
        self.assertIn("test_verify_deterministic_alarm", excluded.read_text())

    def test_a_run_executes_the_given_tests(self):
        results = self.run_of().results([METRIC, NAME], concurrency=3, timeout=600)
        self.assertEqual({METRIC: "passed", NAME: "passed"}, {test: each.outcome for test, each in results.items()})
        self.assertIn(f"run --concurrency 3 --load-list {self.folder}/tempest/tests.txt", self.commands())

    def test_only_a_run_that_ends_in_time_has_results(self):
        run = self.run_of(run="import time; time.sleep(float(os.environ.get('SECONDS', 600)))")
        self.assertEqual({}, run.results([METRIC], concurrency=1, timeout=0.3))
        run._environ["SECONDS"] = "0.3"
        self.assertEqual({METRIC}, {*run.results([METRIC], concurrency=1, timeout=60)})

    def test_a_tempest_that_fails_is_an_error_with_its_output(self):
        run = self.run_of()
        (self.folder / "bin" / "tempest").write_text("#!/bin/sh\necho no such option >&2; exit 2\n")
        self.assertIn("no such option", str(self.assertRaises(self.runs.ServiceFailed, run.listed, PACKAGE)))


class CommandTest(TempestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("run_tempest.tempest_python", lambda *_: Path(sys.executable)))
        stack = lambda *_, **__: contextlib.nullcontext("")  # noqa: E731
        self.useFixture(fixtures.MonkeyPatch("tempest_stack.running", stack))

    def ran(self, *arguments, **statuses):
        """Run the command with a plugin of three tests, and return its exit status and output. ``b="fail"``: the
        result of a test."""
        for name, status in statuses.items():
            [test] = [test for test in (METRIC, NAME, ALARM) if test.endswith(name)]
            (self.folder / test).write_text(status)
        run = self.run_of(METRIC, NAME, ALARM)
        self.useFixture(fixtures.MonkeyPatch("run_tempest.TempestRun", lambda *_: run))
        self.useFixture(fixtures.MonkeyPatch("sys.argv", ["tools/tempest_tests", *arguments]))
        out = self.useFixture(fixtures.StringStream("out")).stream
        with fixtures.MonkeyPatch("sys.stdout", out):
            status = self.command.main()
        out.seek(0)
        return status, out.read()

    def test_the_command_prints_the_counts(self):
        self.assertEqual((0, "3 passed, 0 failed, 0 skipped\n"), self.ran("own"))

    def test_a_failed_test_runs_again_with_its_class_and_one_test_at_a_time(self):
        status, out = self.ran("own", b="fail")
        self.assertEqual(0, status)
        self.assertIn(f"flaky: {METRIC}", out)
        self.assertIn("--concurrency 1 ", self.commands()[-2])
        self.assertEqual([METRIC, NAME], (self.folder / "tempest" / "tests.txt").read_text().split())

    def test_a_skipped_test_and_one_without_a_result_are_failures(self):
        self.assertEqual((1, "2 passed, 0 failed, 1 skipped\n"), self.ran("own", b="skip"))

    def test_a_test_without_a_result_is_a_failure(self):
        self.assertEqual((1, "2 passed, 1 failed, 0 skipped\n"), self.ran("own", b="exists", c="success"))

    def test_a_stream_has_one_attempt_and_its_tests(self):
        stream = self.folder / "tempest.1.subunit"
        self.assertEqual(1, self.ran("own", "--test", "test_d|test_b", "--stream", str(stream), b="fail")[0])
        self.assertEqual([METRIC, ALARM], (self.folder / "tempest.1.ids").read_text().split())
        self.assertEqual(1, sum(line.startswith("run --concurrency") for line in self.commands()))
        self.assertGreater(stream.stat().st_size, 0)

    def test_a_stack_or_a_test_that_is_missing_has_its_own_status(self):
        self.assertEqual((3, ""), self.ran("own", "--test", "no such"))

    def test_a_wrong_argument_is_refused(self):
        for wrong in (["owns"], ["own", "--keep", str(TOOLS)], ["--stream", "file"]):
            self.useFixture(fixtures.MonkeyPatch("sys.argv", ["tools/tempest_tests", *wrong]))
            self.assertEqual(2, self.assertRaises(SystemExit, self.command.main).code)


class WarmUpTest(TempestCase):
    def test_the_warm_up_ends_with_the_first_alarm_and_leaves_no_definition(self):
        called, histories = [], [[], [], [{"id": 1}]]

        def call(method, path, body):
            called.append((method, path))
            return {"id": "d", "elements": histories.pop(0) if method == "GET" else None}

        self.useFixture(fixtures.MonkeyPatch("tempest_warm_up._LOOK_EVERY_SECONDS", 0))
        self.warm_up.warm_up(call, lambda: None)
        looks = [("GET", "/alarms/state-history")] * 3
        posts = [("POST", "/alarm-definitions"), ("POST", "/metrics")]
        self.assertEqual([*posts, *looks, ("DELETE", "/alarm-definitions/d")], called)

    def test_without_an_alarm_the_warm_up_fails_and_with_a_failed_service_it_fails_immediately(self):
        def call(*_):
            return {"id": "d", "elements": []}

        def ended():
            raise self.runs.ServiceFailed("the evaluator ended")

        error = self.assertRaises(self.runs.ServiceFailed, self.warm_up.warm_up, call, lambda: None, 0)
        self.assertIn("no alarm within 0 s", str(error))
        error = self.assertRaises(self.runs.ServiceFailed, self.warm_up.warm_up, call, ended)
        self.assertEqual("the evaluator ended", str(error))


class ConfigurationTest(TempestCase):
    def test_the_services_read_their_configuration_and_accept_metrics_11_days_ahead(self):
        path = self.folder / "monasca.conf"
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

    def test_tempest_creates_its_own_users_only_in_keystone(self):
        read = configparser.ConfigParser()
        read.read_string(self.stack.tempest_configuration("http://127.0.0.1:5/v3", "p", Path("/a")))
        self.assertEqual(("http://127.0.0.1:5/v3", "p"), (read["identity"]["uri_v3"], read["auth"]["admin_password"]))
        self.assertEqual({"False"}, set(read["service_available"].values()))


class SearchTest(TempestCase):
    def test_the_search_parses_the_requests_of_the_plugin(self):
        index = '{"index" : "*", "search_type" : "dfs_query_then_fetch"}'
        for body, asked in (
            (f'\n{index}\n{{"query" : {{"match" : {{"message":"abc"}}}}}}\n', ("message", "abc")),
            (f'\n  {index}\n   {{"query" : {{"match" : {{"event_type":" a.b "}}}}}}\n', ("event_type", " a.b ")),
        ):
            self.assertEqual(asked, self.search.query_of(body))

    def test_the_search_finds_stored_logs(self):
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
