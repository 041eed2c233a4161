# SPDX-License-Identifier: Apache-2.0
"""What a session needs and how it is configured, without one."""

import importlib.util
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base
from testtools.matchers import Contains

from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.spark import session


class InstalledTest(base.BaseTestCase):
    def assert_unavailable(self, *texts):
        error = self.assertRaises(SparkUnavailable, session.check_installed)
        for text in texts:
            self.assertThat(str(error), Contains(text))
        self.assertNotIn("\n", str(error))

    def java(self, text):
        """A Java that says this of its version."""
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

    def test_what_python_lacks_is_named_with_the_remedy(self):
        self.without("pandas", "pyarrow")
        self.assert_unavailable("pandas, pyarrow is not installed", "monasca-common[spark]")

    def test_a_machine_without_java_is_told_so(self):
        self.useFixture(fixtures.EnvironmentVariable("JAVA_HOME", None))
        self.useFixture(fixtures.EnvironmentVariable("PATH", "/nowhere"))
        self.assert_unavailable("Java is not installed", "JAVA_HOME")

    def test_an_old_java_is_told_with_its_version(self):
        for text, version in (('openjdk version "11.0.2" 2019', 11), ('java version "1.8.0_402"', 8)):
            self.java(text)
            self.assert_unavailable(f"is Java {version}, but Spark needs 17")

    def test_a_new_one_will_do(self):
        for text in ('openjdk version "17.0.15" 2025', 'openjdk version "21-ea"', "something else"):
            self.java(text)
            session.check_installed()

    def test_the_package_and_its_commands_are_imported_without_any_of_it(self):
        code = """
import sys
for name in ("pyspark", "py4j", "pandas", "pyarrow"):
    sys.modules[name] = None
import monasca_common, monasca_common.pipeline, monasca_common.cli.pipeline, monasca_common.pipeline.options
import monasca_common.pipeline.jobs.aggregate
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((0, ""), (done.returncode, done.stderr))


class ConfigurationTest(base.BaseTestCase):
    def test_the_connector_is_that_of_the_installed_spark(self):
        import pyspark

        packages = session.configuration(SparkSettings())["spark.jars.packages"]
        self.assertEqual(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}", packages)

    def test_what_the_operator_says_comes_last(self):
        settings = SparkSettings(packages=("a:b:1", "c:d:2"), jars=("/x.jar",), options={"spark.ui.enabled": "true"})
        found = session.configuration(settings)
        self.assertEqual(
            ("a:b:1,c:d:2", "/x.jar", "true"),
            (found["spark.jars.packages"], found["spark.jars"], found["spark.ui.enabled"]),
        )

    def test_a_laptop_asks_nobody_for_its_address_and_a_cluster_does(self):
        self.assertEqual("127.0.0.1", session.configuration(SparkSettings())["spark.driver.host"])
        self.assertNotIn("spark.driver.host", session.configuration(SparkSettings("spark://h:7077")))

    def test_jars_do_not_take_the_place_of_those_of_the_packages(self):
        """spark-submit has put them together by the time that a session is built."""
        built = {}

        class Builder:
            def appName(self, _):  # noqa: N802
                return self

            def config(self, option, value):
                built[option] = value
                return self

            def getOrCreate(self):  # noqa: N802
                raise OSError("enough")

        for name, value in (
            ("pyspark.sql.SparkSession.builder", Builder()),
            ("pyspark.SparkContext._ensure_initialized", lambda: None),
            ("monasca_common.pipeline.spark.session.check_installed", lambda: None),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, value))
        self.assertRaises(SparkUnavailable, session.open_session, SparkSettings(jars=("/x.jar",)), "a")
        self.assertIn("spark.jars.packages", built)
        self.assertNotIn("spark.jars", built)

    def test_submit_gives_spark_its_options_in_a_file_that_is_gone_afterwards(self):
        seen = {}

        def popen(command, *, env):
            path = Path(command[command.index("--properties-file") + 1])
            seen.update(command=command, text=path.read_text(), path=path, python=env["PYSPARK_PYTHON"])
            self.assertEqual(signal.SIG_IGN, signal.getsignal(signal.SIGINT))  # for who is started inherits that
            return mock.Mock(wait=lambda: 7)

        self.useFixture(fixtures.MonkeyPatch("subprocess.Popen", popen))
        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.spark.session.check_installed", lambda: None))
        settings = SparkSettings("spark://h:7077", options={"spark.secret": "a\\b\nc"})
        self.assertEqual(7, session.submit(settings, "program.py", ["pipeline", "run"]))
        self.assertIn("spark.master=spark://h:7077\n", seen["text"])
        self.assertIn("spark.secret=a\\\\b\\nc\n", seen["text"])
        self.assertNotIn("secret", " ".join(seen["command"]))
        self.assertEqual(["program.py", "pipeline", "run"], seen["command"][-3:])
        self.assertFalse(seen["path"].exists())
        self.assertEqual(os.environ.get("PYSPARK_PYTHON", sys.executable), seen["python"])

    def test_submit_passes_a_signal_on_to_the_driver_once_that_handles_it(self):
        killed = []
        process = mock.Mock(terminate=lambda: killed.append("spark-submit"))
        driver = Path(self.useFixture(fixtures.TempDir()).path) / "pid"

        def wait():
            signal.raise_signal(signal.SIGTERM)
            self.useFixture(fixtures.EnvironmentVariable("MONASCA_PIPELINE_DRIVER", str(driver)))
            session.tell_submit()
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(each)
            return 0

        process.wait = wait
        self.useFixture(fixtures.MonkeyPatch("os.kill", lambda *of: killed.append(of)))
        self.useFixture(fixtures.MonkeyPatch("subprocess.Popen", lambda *_, **__: process))
        before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
        self.assertEqual(0, session._run(["spark-submit"], {}, driver))
        self.assertEqual(["spark-submit", *[(os.getpid(), signal.SIGTERM)] * 2], killed)
        self.assertEqual(before, [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)])

    def test_a_session_is_started_without_an_option_on_a_command_line_or_in_a_log(self):
        seen = {}

        def popen(command, **_):
            path = Path(command[command.index("--properties-file") + 1])
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
        for name, level in (("", logging.DEBUG), ("py4j", logging.NOTSET)):
            self.addCleanup(logging.getLogger(name).setLevel, logging.getLogger(name).level)
            logging.getLogger(name).setLevel(level)

        settings = SparkSettings(options={"spark.hadoop.fs.s3a.secret.key": "hush"})
        error = self.assertRaises(SparkUnavailable, session.open_session, settings, "a")

        self.assertIn("no more processes", str(error))
        self.assertNotIn("hush", " ".join(seen["command"]))
        self.assertIn("spark.hadoop.fs.s3a.secret.key=hush\n", seen["text"])
        self.assertIn("spark.driver.memory=1g\n", seen["text"])
        self.assertEqual(["--name", "given", "pyspark-shell"], seen["command"][-3:])
        self.assertEqual((0o600, False), (seen["mode"] & 0o777, seen["path"].exists()))
        self.assertEqual(logging.WARNING, seen["level"])
        self.assertEqual("--name given pyspark-shell", os.environ["PYSPARK_SUBMIT_ARGS"])
