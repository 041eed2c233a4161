# SPDX-License-Identifier: Apache-2.0
"""The requirements and the configuration of a session, tested without a session."""

import importlib
import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import fixtures
import pyspark
from oslotest import base
from testtools.matchers import Contains, MatchesRegex

from monasca_common.pipeline.errors import RecordsLost, SparkFailed, SparkUnavailable
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.spark import session
from monasca_common.pipeline.spark.connector import kafka_connector


class InstalledTest(base.BaseTestCase):
    def assert_unavailable(self, *texts):
        error = self.assertRaises(SparkUnavailable, session.check_installed)
        for text in texts:
            self.assertThat(str(error), Contains(text))
        self.assertNotIn("\n", str(error))

    def java(self, text):
        """Install a Java that prints this as its version."""
        home = Path(self.useFixture(fixtures.TempDir()).path)
        (home / "bin").mkdir()
        program = home / "bin" / "java"
        program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        program.chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable("JAVA_HOME", str(home)))

    def without(self, *modules):
        find = importlib.util.find_spec
        self.useFixture(
            fixtures.MonkeyPatch(
                "importlib.util.find_spec", lambda name, *rest: None if name in modules else find(name, *rest)
            )
        )

    def test_a_missing_package_is_an_error_with_the_remedy(self):
        self.without("pandas", "pyarrow")
        self.assert_unavailable("pandas, pyarrow is not installed", "monasca-common[spark]")

    def test_missing_java_is_an_error(self):
        self.useFixture(fixtures.EnvironmentVariable("JAVA_HOME", None))
        self.useFixture(fixtures.EnvironmentVariable("PATH", "/nowhere"))
        self.assert_unavailable("java is not on the path", "JAVA_HOME")

    def test_an_old_java_is_an_error_with_its_version(self):
        for text, version in (('openjdk version "11.0.2" 2019', 11), ('java version "1.8.0_402"', 8)):
            self.java(text)
            self.assert_unavailable(f"is Java {version}, but Kafka and Spark need 17")

    def test_a_new_java_is_accepted(self):
        for text in ('openjdk version "17.0.15" 2025', 'openjdk version "21-ea"'):
            self.java(text)
            session.check_installed()

    def test_the_package_and_its_commands_are_imported_without_spark(self):
        code = """
import sys
for name in ("pyspark", "py4j", "pandas", "pyarrow"):
    sys.modules[name] = None
import monasca_common, monasca_common.pipeline, monasca_common.cli.pipeline, monasca_common.pipeline.settings
import monasca_common.pipeline.aggregate.job
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((0, ""), (done.returncode, done.stderr))


class ReasonTest(base.BaseTestCase):
    def test_the_reason_of_an_error_in_a_task_is_the_python_exception(self):
        text = """An error occurred while calling o1.x.
: org.apache.spark.SparkException: Job aborted: org.apache.PythonException: Traceback (most recent call last):
  File "x.py", line 3, in y
    raise Away("no route")
some.errors.Away: no route

\tat org.apache.spark.x"""
        self.assertEqual("some.errors.Away: no route", session.reason(Exception(text)))
        caused = text.replace(
            "some.errors.Away: no route",
            """builtins.OSError: 3

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "x.py", line 5, in y
some.errors.Away: no route""",
        )
        self.assertEqual("some.errors.Away: no route", session.reason(Exception(caused)))
        self.assertEqual("plain", session.reason(Exception("plain\nand more")))
        self.assertEqual("ValueError", session.reason(ValueError()))

    def test_the_reason_of_an_error_in_java_is_the_last_cause(self):
        text = """An error occurred while calling o127.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.x
Caused by: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost;
either the data was aged out
\tat org.apache.spark.y
Caused by: org.apache.kafka.OffsetOutOfRangeException: offset 0 is out of range
\tat org.apache.kafka.z
\t... 46 more
"""
        expected = "org.apache.kafka.OffsetOutOfRangeException: offset 0 is out of range"
        self.assertEqual(expected, session.reason(Exception(text)))

    def test_without_a_cause_the_reason_is_the_java_exception(self):
        text = "An error occurred while calling o1.start.\n: java.net.BindException: in use\n\tat a.b(C.java:1)"
        self.assertEqual("java.net.BindException: in use", session.reason(Exception(text)))


class ConfigurationTest(base.BaseTestCase):
    def test_the_connectors_jars_are_local_files_for_every_kind_of_master(self):
        connector = [Path("/cache/clients.jar"), Path("/cache/connector.jar")]
        for master in ("local[*]", "spark://h:7077", "yarn", "k8s://https://h"):
            found = session.configuration(SparkSettings(master), connector)
            self.assertEqual("/cache/clients.jar,/cache/connector.jar", found["spark.jars"])
            self.assertNotIn("spark.jars.packages", found)

    def test_workers_are_forked_from_an_existing_daemon(self):
        module = session.configuration(SparkSettings())["spark.python.daemon.module"]
        self.assertTrue(callable(importlib.import_module(module).main))

    def test_options_of_the_operator_override_others(self):
        found = session.configuration(SparkSettings(options={"spark.ui.enabled": "true"}))
        self.assertEqual("true", found["spark.ui.enabled"])

    def test_jars_and_packages_of_the_operator_are_added_to_the_connector(self):
        settings = SparkSettings(options={"spark.jars": "/x.jar", "spark.jars.packages": "a:b:1,c:d:2"})
        found = session.configuration(settings, [Path("/connector.jar")])
        self.assertEqual(("/connector.jar,/x.jar", "a:b:1,c:d:2"), (found["spark.jars"], found["spark.jars.packages"]))

    def test_ivy_fetches_a_connector_that_is_not_pinned(self):
        found = session.configuration(SparkSettings(options={"spark.jars.packages": "a:b:1"}), None)
        self.assertEqual(f"{kafka_connector()},a:b:1", found["spark.jars.packages"])
        self.assertNotIn("spark.jars", found)

    def test_a_local_master_uses_the_loopback_address_and_a_cluster_does_not(self):
        self.assertEqual("127.0.0.1", session.configuration(SparkSettings())["spark.driver.host"])
        self.assertNotIn("spark.driver.host", session.configuration(SparkSettings("spark://h:7077")))

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.spark.session.connector_jars", list))

    def open(self, settings):
        """Return the options with which a session is built."""
        built = {}

        class Builder:
            def appName(self, _):  # noqa: N802
                return self

            def config(self, option, value):
                built[option] = value
                return self

            def getOrCreate(self):  # noqa: N802
                raise OSError("enough")

        def start_java(*_):
            pyspark.SparkContext._gateway = mock.Mock()

        for name, value in (
            ("pyspark.sql.SparkSession.builder", Builder()),
            ("pyspark.SparkContext._gateway", None),
            ("pyspark.SparkContext._ensure_initialized", start_java),
            ("monasca_common.pipeline.spark.session.check_installed", lambda: None),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, value))
        self.assertRaises(SparkUnavailable, session.open_session, settings, "a")
        return built

    def test_jars_do_not_replace_the_jars_of_the_packages(self):
        """spark-submit has merged them when a session is built."""
        built = self.open(SparkSettings(options={"spark.jars.packages": "a:b:1", "spark.jars": "/x.jar"}))

        self.assertIn("spark.jars.packages", built)
        self.assertNotIn("spark.jars", built)

    def test_without_packages_ivy_is_not_used(self):
        built = self.open(SparkSettings())

        self.assertIn("spark.master", built)
        self.assertNotIn("spark.jars.packages", built)

    def test_a_session_is_started_without_an_option_on_a_command_line_or_in_a_log(self):
        seen = {}

        def popen(command, *, env, **_):
            path = Path(command[command.index("--properties-file") + 1])
            seen["java"] = env["SPARK_SUBMIT_OPTS"]
            level = logging.getLogger("py4j.clientserver").getEffectiveLevel()
            seen.update(command=command, text=path.read_text(), mode=path.stat().st_mode, path=path, level=level)
            raise OSError("no more processes")

        for name, value in (
            ("pyspark.java_gateway.Popen", popen),
            ("pyspark.SparkContext._gateway", None),
            ("monasca_common.pipeline.spark.session.check_installed", lambda: None),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, value))
        self.useFixture(fixtures.EnvironmentVariable("PYSPARK_GATEWAY_PORT", None))
        self.useFixture(fixtures.EnvironmentVariable("PYSPARK_SUBMIT_ARGS", "--name given pyspark-shell"))
        self.useFixture(fixtures.EnvironmentVariable("SPARK_SUBMIT_OPTS", "-Xgiven"))
        for name, level in (("", logging.DEBUG), ("py4j", logging.NOTSET)):
            self.addCleanup(logging.getLogger(name).setLevel, logging.getLogger(name).level)
            logging.getLogger(name).setLevel(level)

        settings = SparkSettings(options={"spark.hadoop.fs.s3a.secret.key": "hush", "spark.other": "a\\b\nc"})
        error = self.assertRaises(SparkUnavailable, session.open_session, settings, "a")

        self.assertIn("no more processes", str(error))
        self.assertNotIn("hush", " ".join(seen["command"]))
        self.assertIn("spark.hadoop.fs.s3a.secret.key=hush\n", seen["text"])
        self.assertIn("spark.driver.memory=1g\n", seen["text"])
        self.assertIn("spark.other=a\\\\b\\nc\n", seen["text"])
        self.assertEqual(["--name", "given", "pyspark-shell"], seen["command"][-3:])
        self.assertEqual((0o600, False), (seen["mode"] & 0o777, seen["path"].exists()))
        self.assertEqual(logging.WARNING, seen["level"])
        self.assertEqual("--name given pyspark-shell", os.environ["PYSPARK_SUBMIT_ARGS"])
        # The session has its own folder, and logs one line per event at the default level.
        own = r"(\S+/monasca-spark-\w+)"
        self.assertThat(seen["java"], MatchesRegex(rf"-Duser\.dir={own} -Djava\.io\.tmpdir=\1 -Xgiven$"))
        self.assertIn("monasca-spark-", seen["path"].parent.name)  # the next session removes it after a kill
        self.assertEqual("-Xgiven", os.environ["SPARK_SUBMIT_OPTS"])

    def test_under_spark_submit_its_running_java_is_used(self):
        def connect(*_):
            connected.append(True)
            pyspark.SparkContext._gateway = object()

        connected = []
        self.useFixture(fixtures.EnvironmentVariable("PYSPARK_GATEWAY_PORT", "1"))
        self.useFixture(fixtures.MonkeyPatch("pyspark.SparkContext._gateway", None))
        self.useFixture(fixtures.MonkeyPatch("pyspark.SparkContext._ensure_initialized", connect))
        session._start_java({})
        self.assertEqual([True], connected)

    def test_java_logs_one_line_for_each_event_unless_debugging_or_configured(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        brief = f"-Dlog4j2.configurationFile={folder}/log4j2.properties"
        self.useFixture(fixtures.EnvironmentVariable("SPARK_CONF_DIR", None))
        for level, reported in ((logging.INFO, True), (logging.DEBUG, False)):
            self.useFixture(fixtures.FakeLogger(level=level))
            self.assertEqual(reported, brief in session._java_options(folder).split(), level)
        self.useFixture(fixtures.FakeLogger(level=logging.INFO))
        self.useFixture(fixtures.EnvironmentVariable("SPARK_CONF_DIR", str(folder)))
        self.assertNotIn(brief, session._java_options(folder))


class BriefErrorsTest(base.BaseTestCase):
    def test_an_error_of_spark_becomes_one_line(self):
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        def fail(error):
            with session.brief_errors():
                raise error

        for kind in (PySparkException, Py4JError):
            error = self.assertRaises(SparkFailed, fail, kind("no space left\n\tat java.io.x"))
            self.assertEqual("Spark has failed: no space left", str(error))
        self.assertRaises(RecordsLost, fail, RecordsLost())
