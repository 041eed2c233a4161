# SPDX-License-Identifier: Apache-2.0
import configparser
import subprocess
import sys
from pathlib import Path

from oslotest import base

SETUP = Path(__file__).parents[4] / "setup.cfg"
PROGRAM = """
import sys
for name in ("testtools", "oslotest", "hypothesis", "subunit", "stestr"):
    sys.modules[name] = None
from monasca_common.kafka.testing import MemoryKafka
with MemoryKafka() as kafka, kafka.producer() as producer:
    producer.publish("readings", [b"21"]).raise_for_undelivered()
    print([record.value for record in kafka.broker.records("readings")])
"""
WITHOUT_FIXTURES = """
import sys
sys.modules["fixtures"] = None
import monasca_common.kafka.testing
"""


class TestingExtraTest(base.BaseTestCase):
    def test_tests_of_services_need_only_fixtures(self):
        setup = configparser.ConfigParser()
        setup.read(SETUP)
        (only,) = setup["extras"]["testing"].split("\n")[1:]
        self.assertTrue(only.startswith("fixtures>="))

        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

        self.assertEqual("[b'21']\n", done.stdout, done.stderr)

    def test_the_error_without_fixtures_names_the_extra(self):
        done = subprocess.run([sys.executable, "-c", WITHOUT_FIXTURES], capture_output=True, text=True, check=False)

        last = done.stderr.splitlines()[-1]
        self.assertEqual("ImportError: fixtures is not installed: install monasca-common[testing]", last)
