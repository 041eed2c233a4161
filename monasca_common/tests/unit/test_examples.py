# SPDX-License-Identifier: Apache-2.0
"""The examples that need no broker, and what the others do without one."""

import contextlib
import io
import re
import textwrap
from pathlib import Path

from oslotest import base

from monasca_common.tests.example_case import ExampleCase

README = (Path(__file__).parents[3] / "README.rst").read_text()


class FirstProgramTest(base.BaseTestCase):
    def test_the_program_of_the_first_page_prints_what_the_page_states(self):
        [program] = re.findall(r"code-block:: python\n\n((?:   .*\n|\n)+)", README)
        [printed] = re.findall(r"^prints ``(.+)``\.$", README, re.MULTILINE)
        server = '"localhost:9092"'
        self.assertIn(server, program)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(textwrap.dedent(program).replace(server, f'{server}, driver="memory"'), {})

        self.assertEqual(f"{printed}\n", output.getvalue())


class ExamplesInMemoryTest(ExampleCase):
    def in_memory(self):
        return self.configure("readings", "example", "bootstrap_servers = memory:9092", "driver = memory")

    def test_the_tests_of_a_service_pass(self):
        done = self.run_example("test_in_memory.py")

        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("Ran 3 tests", done.stderr)

    def test_a_bulk_is_published(self):
        said = self.succeeds("produce.py", self.in_memory(), "--count", "3")

        self.assertIn("delivered 3, failed 0, unknown 0", said)

    def test_a_serializer_of_another_package_is_found_by_its_name(self):
        said = self.succeeds("custom_plugin.py", self.in_memory(), path=self.installed("csv_serializer"))

        self.assertIn("read [['hall', '21.5', 'said, and quoted']]", said)

    def test_a_serializer_of_another_package_receives_its_type(self):
        program = """
import pydantic
from monasca_common import kafka

class Reading(pydantic.BaseModel):
    celsius: float

serializer = kafka.load_serializer("pydantic", type=Reading)
assert serializer.loads(serializer.dumps(Reading(celsius=21.5))) == Reading(celsius=21.5)
for function, value in ((serializer.loads, b'{"celsius": "sesame"}'), (serializer.dumps, 5)):
    try:
        function(value)
    except kafka.SerializationError as error:
        print(error)
"""
        path = self.folder / "readings.py"
        path.write_text(program)

        printed = self.succeeds(path, path=self.installed("pydantic_serializer"))

        self.assertEqual(2, printed.count("not a value of the model"))
        self.assertNotIn("sesame", printed)

    def test_an_unknown_serializer_is_refused_with_the_remedy(self):
        done = self.fails("custom_plugin.py", self.in_memory(), "--serializer", "yaml")

        self.assertIn("serializer=yaml is not known", done.stderr)
        self.assertIn("install a package that offers it", done.stderr)

    def test_without_a_configuration_each_says_what_is_missing(self):
        for name in ("produce.py", "consume.py", "restart.py", "retry_dead_letters.py"):
            self.assertIn("is not set", self.fails(name).stderr)
