# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.runtime.logs import shown_url, started, stopped
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

# In a separate process, because oslo.log changes the root logger.
_SERVICE = """
import logging, sys
from oslo_config import cfg
from monasca_common.runtime.logs import register_logging, start_logging
from monasca_common.kafka.errors import ConfigurationError
conf = cfg.ConfigOpts()
register_logging(conf)
conf(["--config-file", sys.argv[1]], default_config_dirs=[])
try:
    start_logging(conf)
except ConfigurationError as error:
    print(error)
logging.getLogger("monasca_common.a").info("an info")
logging.getLogger("monasca_common.a").debug("a detail")
logging.getLogger("cotyledon").info("a foreign info")
"""


class LogsTest(ConfigurationTestCase):
    def logged(self, text):
        command = [sys.executable, "-c", _SERVICE, self.path_of(f"[DEFAULT]\n{text}\n")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    def test_lines_go_to_standard_error_with_only_warnings_of_other_libraries(self):
        out, errors = self.logged("")
        self.assertEqual("", out)
        self.assertRegex(errors, r"^\S+ \S+ \d+ INFO monasca_common\.a \[-\] an info\n$")

    def test_a_file_a_level_and_json_are_options(self):
        path = Path(self.path_of(""))
        self.assertEqual(("", ""), self.logged(f"log_file = {path}\ndebug = true\nuse_json = true"))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual(
            [("INFO", "an info"), ("DEBUG", "a detail")], [(line["levelname"], line["message"]) for line in lines]
        )

    def test_the_error_names_a_file_that_cannot_be_written(self):
        out, _ = self.logged("log_file = /no/such/folder/service.log")
        self.assertIn("logging cannot be set up with the [DEFAULT] options", out)
        self.assertIn("/no/such/folder", out)


class LineTest(base.BaseTestCase):
    def test_a_start_is_one_line_with_version_and_facts(self):
        line = started("api", at="127.0.0.1:8070", reads_database="", workers=2)
        self.assertRegex(line, r"^api \d+\.\d+\.\S+ started: at 127\.0\.0\.1:8070; workers 2$")

    def test_a_stop_without_facts_is_one_line(self):
        self.assertRegex(stopped("api"), r"^api \d+\.\d+\.\S+ stopped$")

    def test_a_count_of_0_is_shown(self):
        self.assertIn("dead letters 0", stopped("persister", dead_letters=0))


class UrlTest(base.BaseTestCase):
    def test_host_and_database_are_shown(self):
        for url, shown in (
            ("postgresql://me:hush@db.example.org:5432/monasca", "postgresql://db.example.org:5432/monasca"),
            ("postgresql://db/monasca?password=hush&sslmode=require", "postgresql://db/monasca"),
            ("sqlite:////var/lib/monasca.sqlite", "sqlite:////var/lib/monasca.sqlite"),
            ("/archive", "/archive"),
            ("s3://key:hush@bucket/folder", "s3://bucket/folder"),
            ("hush", "(not shown)"),
        ):
            self.assertEqual(shown, shown_url(url))

    @given(st.text("/?#@:&=x$", max_size=4), st.text("/?#@:&=x$", max_size=4), st.sampled_from(["", "?password=hush"]))
    def test_no_part_of_a_password_with_separators_is_shown(self, before, after, query):
        url = f"postgresql://me:{before}hush{after}@db/monasca{query}"
        self.assertNotIn("hush", shown_url(url))
        self.assertNotIn("hush", shown_url(f"postgresql://db/monasca?password={before}hush{after}"))
