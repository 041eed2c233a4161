# SPDX-License-Identifier: Apache-2.0
"""What the documentation names is there."""

import ast
import json
import re
from pathlib import Path

from oslotest import base

from monasca_common import kafka, pipeline
from monasca_common.pipeline import specification_reader
from monasca_common.tests.unit.pipeline.pipeline_case import aggregates, golden, partials_of

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
        for path in re.findall(r"``((?:kafka|pipeline|storage)/[\w/]+(?:\.py|/))``", self.page):
            self.assertTrue((PACKAGE / path).exists(), path)

    def test_each_file_and_folder_of_the_core_is_in_the_map(self):
        core = PACKAGE / "kafka"
        for path in core.iterdir():
            if path.suffix == ".py" and path.stem != "__init__":
                self.assertIn(f"``kafka/{path.name}``", self.page)
            elif (path / "__init__.py").exists():
                self.assertIn(f"``kafka/{path.name}/``", self.page)


class SpecificationsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.page = (SOURCE / "configuration" / "specifications.rst").read_text()

    def test_the_example_makes_what_the_page_says(self):
        pre_row, row, expected = map(json.loads, re.findall(r"code-block:: json\n\n((?:   .*\n)+)", self.page))
        specs = pipeline.read(
            pipeline.Rows("pre.jsonl", [json.dumps(pre_row)]), pipeline.Rows("transform.jsonl", [json.dumps(row)])
        )
        self.assertEqual((), specs.warnings)
        (((metric_id, period_ms), found),) = aggregates(
            specs, partials_of(specs, golden("mem_and_pod_metrics.jsonl"))
        ).items()
        (usage,) = (usage for usage in found.usages if usage.column("dimensions#namespace") == "website")
        publisher = pipeline.Publisher("aggregate", "monasca", "")
        version_ms = expected["creation_time"] * 1000
        made = pipeline.output(publisher, specs.transforms[metric_id], usage, period_ms, version_ms=version_ms)
        self.assertEqual(expected, json.loads(made.value))

    def test_each_field_and_each_shipped_row_is_in_the_page(self):
        shipped = pipeline.load()
        fields = (
            *specification_reader._PRE_TRANSFORM_FIELDS,
            *specification_reader._TRANSFORM_FIELDS,
            *specification_reader._PARAMETER_FIELDS,
            *specification_reader._FILTER_FIELDS,
        )
        names = {row.event_type for row in shipped.pre_transforms} | shipped.outputs | shipped.transforms.keys()
        for name in (*fields, *sorted(names)):
            self.assertIn(f"``{name}``", self.page)


class ReferenceTest(base.BaseTestCase):
    def test_each_public_name_has_its_entry(self):
        page = (SOURCE / "reference" / "index.rst").read_text()
        entries = set(re.findall(r"^\.\. auto\w+:: (\w+)", page, re.MULTILINE))
        self.assertEqual(set(kafka.__all__) - {"Headers"}, entries & set(kafka.__all__))


def functions_in(path):
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
