# SPDX-License-Identifier: Apache-2.0
"""The run of the tempest plugins: the tests that run, the results that count as passed, and the output."""

import configparser
import contextlib
import json
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
from monasca_common.tests import web
from monasca_common.tests.served import body_of, http_server, respond, serve

TOOLS = Path(__file__).parents[3] / "tools"

# A module of a plugin; a test fails while the file "fails" exists, which it removes, and can be skipped.
MODULE = """\
import os, unittest
from pathlib import Path

class TestOne(unittest.TestCase):
    def test_a(self):
        fails = Path(os.environ["FAILS"])
        if fails.exists():
            fails.unlink()
            self.fail("once")

    def test_b(self):
        self.assertEqual("[auth]", Path(os.environ["TEMPEST_CONFIG_DIR"], os.environ["TEMPEST_CONFIG"]).read_text())

class TestTwo(unittest.TestCase):
    @unittest.skipIf("SKIPS" in os.environ, "for the test")
    def test_c(self): pass
"""


class TempestCase(base.BaseTestCase):
    """``self.<name>`` is the tool with that name, which is in no package."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(TOOLS / "tempest_tests"), *sys.path]))
        import run_tempest
        import tempest_search
        import tempest_stack
        import tempest_warm_up

        self.command, self.search = run_tempest, tempest_search
        self.stack, self.warm_up = tempest_stack, tempest_warm_up
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)


class CommandTest(TempestCase):
    """The command with a plugin of three tests, and without servers."""

    def setUp(self):
        super().setUp()
        tests = self.folder / "plugin" / "plugin_tests"
        tests.mkdir(parents=True)
        (tests / "__init__.py").touch()
        (tests / "test_some.py").write_text(MODULE)
        plugin = (Path(sys.executable), tests, tests.parent)
        stack = lambda *_, **__: contextlib.nullcontext("[auth]")  # noqa: E731
        self.useFixture(fixtures.MonkeyPatch("run_tempest.tempest_of", lambda name: plugin))
        self.useFixture(fixtures.MonkeyPatch("run_tempest._PLUGINS", dict.fromkeys(("own", "public"), "plugin_tests.")))
        self.useFixture(fixtures.MonkeyPatch("tempest_stack.running", stack))
        self.useFixture(fixtures.EnvironmentVariable("FAILS", str(self.folder / "fails")))
        self.useFixture(fixtures.EnvironmentVariable("XDG_CACHE_HOME", str(self.folder)))  # not that of real runs
        self.kept = self.folder / "kept"

    def run_command(self, *arguments):
        """Return the exit status of the command with these arguments."""
        self.useFixture(fixtures.MonkeyPatch("sys.argv", ["run_tempest.py", *arguments]))
        return self.command.main()

    def ids(self, name="tempest-own.1.ids"):
        return [test.rpartition(".")[2] for test in (self.kept / name).read_text().split()]

    def test_all_tests_of_both_plugins_run_with_the_configuration(self):
        self.assertEqual(0, self.run_command("--keep", str(self.kept)))
        for name in ("own", "public"):
            self.assertEqual(["test_a", "test_b", "test_c"], self.ids(f"tempest-{name}.1.ids"))

    def test_a_failed_test_runs_again_with_its_class(self):
        (self.folder / "fails").touch()
        self.assertEqual(0, self.run_command("own", "--keep", str(self.kept)))
        self.assertEqual(["test_a", "test_b"], self.ids("tempest-own.2.ids"))

    def test_a_skipped_test_is_a_failure(self):
        self.useFixture(fixtures.EnvironmentVariable("SKIPS", "1"))
        self.assertEqual(1, self.run_command("own"))

    def test_only_tests_that_match_run_and_none_is_a_failure(self):
        self.assertEqual(0, self.run_command("own", "--keep", str(self.kept), "--test", "TestTwo|test_b$"))
        self.assertEqual(["test_b", "test_c"], self.ids())
        self.assertEqual(1, self.run_command("own", "--test", "no such"))

    def test_the_excluded_test_does_not_run(self):
        self.useFixture(fixtures.MonkeyPatch("run_tempest._EXCLUDED", r"plugin_tests\.test_some\.TestOne\.test_a"))
        self.assertEqual(0, self.run_command("own", "--keep", str(self.kept)))
        self.assertEqual(["test_b", "test_c"], self.ids())

    def test_results_in_a_folder_are_not_evaluated(self):
        self.useFixture(fixtures.EnvironmentVariable("SKIPS", "1"))
        self.kept.mkdir()
        self.assertEqual(0, self.run_command("own", "--results", str(self.kept)))
        self.assertTrue((self.kept / "tempest-own.1.subunit").stat().st_size)

    def test_servers_that_do_not_start_have_their_own_status(self):
        def fail(*_, **__):
            raise self.command.ServiceFailed("the API ended")

        self.useFixture(fixtures.MonkeyPatch("tempest_stack.running", fail))
        self.assertEqual(3, self.run_command("own"))

    def test_a_wrong_argument_is_refused(self):
        for wrong in (["owns"], ["own", "--keep", str(TOOLS)]):
            self.assertEqual(2, self.assertRaises(SystemExit, self.run_command, *wrong).code)


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
            raise self.command.ServiceFailed("the evaluator ended")

        error = self.assertRaises(self.command.ServiceFailed, self.warm_up.warm_up, call, lambda: None, 0)
        self.assertIn("no alarm within 0 s", str(error))
        error = self.assertRaises(self.command.ServiceFailed, self.warm_up.warm_up, call, ended)
        self.assertEqual("the evaluator ended", str(error))

    def test_the_client_returns_the_response_and_reports_an_error_with_its_text(self):
        def answer(handler):
            seen = handler.command, handler.path, handler.headers["X-Auth-Token"], body_of(handler)
            status = 200 if seen == ("POST", "/v2.0/metrics", "t", b'{"a": 1}') else 503
            respond(handler, status, b'{"id": 5}')

        server = http_server(answer)
        self.addCleanup(serve(server))
        call = self.warm_up.client(server.server_port, "t")
        self.assertEqual({"id": 5}, call("POST", "/metrics", {"a": 1}))
        error = self.assertRaises(self.command.ServiceFailed, call, "GET", "/alarms", None)
        self.assertEqual('GET /alarms returned 503: {"id": 5}', str(error))


class ConfigurationTest(TempestCase):
    def test_the_services_read_their_configuration_and_accept_metrics_11_days_ahead(self):
        path = self.folder / "monasca.conf"
        url = "postgresql://monasca@127.0.0.1/monasca"
        listening = (7, 8, 9)
        path.write_text(
            self.stack.service_configuration("127.0.0.1:9", "postgresql", url, "http://127.0.0.1:5", listening, 30)
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
        read.read_string(self.stack.tempest_configuration("http://127.0.0.1:5/v3", "p", Path("/a"), 30))
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

    def test_the_search_is_served(self):
        url = f"sqlite:///{self.folder}/a.sqlite"
        with sa.create_engine(url).begin() as connection:
            metadata.create_all(connection, [logs, events])
            event = {"time": 1, "tenant": "t", "dimensions": "{}", "message_id": b"1", "payload": "{}"}
            connection.execute(sa.insert(events), {**event, "event_type": "a.b"})
        with self.search.serving(url) as port:
            _, headers, body = web.request(
                port, "POST", "/_msearch", b'{}\n{"query": {"match": {"event_type": "a.b"}}}'
            )
        self.assertEqual("application/json", headers["content-type"])
        hits = [{"_source": {"tenant": "t", "event_type": "a.b"}}]
        self.assertEqual({"responses": [{"hits": {"hits": hits}}]}, json.loads(body))

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
