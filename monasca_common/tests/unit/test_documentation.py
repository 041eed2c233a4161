# SPDX-License-Identifier: Apache-2.0
"""What the documentation names is there."""

import ast
import re
from pathlib import Path

from oslotest import base

from monasca_common import kafka

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "monasca_common"
SOURCE = ROOT / "doc" / "source"
CONTRACTS = PACKAGE / "kafka" / "testing"


class ArchitectureTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.page = (SOURCE / "contributor" / "architecture.rst").read_text()

    def test_each_invariant_names_tests_that_there_are(self):
        named = re.findall(r"``([\w/]+\.py)::(test_\w+)``", self.page)
        self.assertGreater(len(named), 50)
        for file, test in named:
            folder = CONTRACTS if file.startswith("contracts/") else PACKAGE / "tests"
            self.assertIn(test, functions_in(folder / file), file)

    def test_each_file_of_the_map_is_there(self):
        for path in re.findall(r"``(kafka/[\w/]+(?:\.py|/))``", self.page):
            self.assertTrue((PACKAGE / path).exists(), path)

    def test_each_file_and_folder_of_the_core_is_in_the_map(self):
        core = PACKAGE / "kafka"
        for path in core.iterdir():
            if path.suffix == ".py" and path.stem != "__init__":
                self.assertIn(f"``kafka/{path.name}``", self.page)
            elif (path / "__init__.py").exists():
                self.assertIn(f"``kafka/{path.name}/``", self.page)


class ReferenceTest(base.BaseTestCase):
    def test_each_public_name_has_its_entry(self):
        page = (SOURCE / "reference" / "index.rst").read_text()
        entries = set(re.findall(r"^\.\. auto\w+:: (\w+)", page, re.MULTILINE))
        self.assertEqual(set(kafka.__all__) - {"Headers"}, entries & set(kafka.__all__))


def functions_in(path):
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
