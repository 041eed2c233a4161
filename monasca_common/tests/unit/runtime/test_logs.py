# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
from pathlib import Path

from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

# In a process of its own, because oslo.log changes the root logger.
_SERVICE = """
import logging, sys
from oslo_config import cfg
from monasca_common.runtime import register_logging, start_logging
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

    def test_lines_go_to_standard_error_and_those_of_other_libraries_from_warnings_on(self):
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

    def test_a_place_that_cannot_be_written_is_named(self):
        out, _ = self.logged("log_file = /no/such/folder/service.log")
        self.assertIn("logs cannot be written as [DEFAULT] says: ", out)
        self.assertIn("/no/such/folder", out)
