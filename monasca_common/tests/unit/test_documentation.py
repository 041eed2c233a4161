# SPDX-License-Identifier: Apache-2.0
"""The files, tests, names and steps that the documentation names exist."""

import ast
import collections
import functools
import importlib.util
import itertools
import json
import re
import sys
import textwrap
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common import kafka, pipeline
from monasca_common.kafka import aio, testing
from monasca_common.pipeline import dataframes
from monasca_common.pipeline.aggregate.output import output
from monasca_common.pipeline.specification import reader
from monasca_common.pipeline.specification.specification import Publisher
from monasca_common.tests.unit.pipeline.pipeline_case import aggregates, golden, partials_of

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "monasca_common"
SOURCE = ROOT / "doc" / "source"
CRASH = re.compile(r"crash|kill|\bdie[sd]?\b", re.IGNORECASE)


class InvariantsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.texts = rules((SOURCE / "contributor" / "invariants.rst").read_text())
        self.tests = loaded(ROOT / "doc" / "extensions" / "rule_tests.py").marked_tests()

    def test_each_rule_has_marked_tests_and_each_marked_test_has_a_rule(self):
        self.assertEqual(self.texts.keys(), self.tests.keys())

    def test_each_rule_keeps_a_test_in_the_everyday_run_and_a_crash_test_if_it_is_about_crashes(self):
        everyday = EverydayTests()
        for number, rule in self.texts.items():
            kept = [name for file, test in self.tests[number] for name in everyday.names(file, test)]
            self.assertNotEqual([], kept, rule)
            if CRASH.search(rule):
                self.assertTrue(
                    CRASH.search(" ".join(kept)), f"the normal run contains no crash test of this rule: {rule}"
                )

    def test_each_guarantee_names_its_rules(self):
        page = (SOURCE / "user" / "guarantees.rst").read_text()
        found = re.findall(r"^\* (\*\*.+?)(?=\n\n|\n\* )", page.partition("Together\n")[0], re.MULTILINE | re.DOTALL)
        for table in page.split("   * - Guarantee\n     - Condition\n")[1:]:
            found += re.findall(r"^   \* - (.+?)\n     - ", table.partition("\n\n")[0], re.MULTILINE | re.DOTALL)
        self.assertEqual(27, len(found))
        for text in found:
            numbers = re.search(r" \[((?:\d+, )*\d+)\]$", text)
            self.assertIsNotNone(numbers, text)
            self.assertLessEqual({int(number) for number in numbers[1].split(", ")}, self.texts.keys(), text)


class EverydayTestsTest(base.BaseTestCase):
    def names(self, source):
        file = Path(self.useFixture(fixtures.TempDir()).path) / "test_some.py"
        file.write_text(textwrap.dedent(source))
        return EverydayTests(file.parent).names(file, "test_a")

    def test_a_marked_test_and_a_test_of_a_marked_class_are_not_in_the_everyday_run(self):
        self.assertEqual([], self.names('class Some(Case):\n    @periodic("slow")\n    def test_a(self): ...'))
        self.assertEqual([], self.names('@periodic("slow")\nclass Some(Case):\n    def test_a(self): ...'))

    def test_a_shared_test_is_in_the_everyday_run_if_a_class_that_inherits_it_is(self):
        shared = "class Shared:\n    def test_a(self): ...\n"
        marked = '@periodic("twin")\nclass First(Shared, Case): ...\n'
        self.assertEqual([], self.names(shared + marked))
        [name] = self.names(shared + marked + "class Second(Shared, Case): ...\n")
        self.assertIn("Shared test_a", name)


class FileMapTest(base.BaseTestCase):
    """The page is generated from docstrings, so each module needs a meaningful one."""

    def setUp(self):
        super().setUp()
        self.map = loaded(ROOT / "doc" / "extensions" / "file_map.py")

    def test_each_module_has_a_docstring_for_the_page(self):
        silent = [
            str(path.relative_to(ROOT))
            for folder in self.map.packages(PACKAGE)
            for path in (folder / "__init__.py", *self.map.modules(folder))
            if not self.map.summary(path).rstrip("`").endswith((".", "?"))
        ]
        self.assertEqual([], silent)

    def test_each_file_that_the_architecture_page_names_exists(self):
        page = (SOURCE / "contributor" / "architecture.rst").read_text()
        for path in re.findall(r"``((?:\w+/)+\w*(?:\.py|/))``", page):
            self.assertTrue((PACKAGE / path).exists() or (ROOT / path).exists(), path)


class FiguresTest(base.BaseTestCase):
    def test_each_figure_equals_the_output_of_its_script(self):
        folder = SOURCE / "_figures"
        drawn = loaded(ROOT / "doc" / "figures" / "__main__.py").FIGURES
        pictures = {"quickstart", "dashboard-light", "dashboard-dark", "pictures"}
        self.assertEqual({*drawn, *pictures}, {path.stem for path in folder.iterdir()})
        for name, draw in drawn.items():
            self.assertEqual((folder / f"{name}.svg").read_text(), draw().svg(), f"{name}: run python doc/figures")

    def test_the_pictures_of_the_quick_start_are_not_stale(self):
        recorded = (SOURCE / "_figures" / "pictures.sha256").read_text().strip()
        current = loaded(ROOT / "doc" / "figures" / "pictures.py").digest()
        self.assertEqual(current, recorded, "run python doc/figures --quickstart, and look at the pictures")


class SpecificationsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.page = (SOURCE / "configuration" / "specifications.rst").read_text()

    def test_the_example_has_the_results_on_the_page(self):
        pre_row, row, expected = map(json.loads, re.findall(r"code-block:: json\n\n((?:   .*\n)+)", self.page))
        specs = pipeline.read(
            pipeline.JsonRows("pre.jsonl", [json.dumps(pre_row)]),
            pipeline.JsonRows("transform.jsonl", [json.dumps(row)]),
        )
        self.assertEqual((), specs.warnings)
        (((metric_id, period_ms), found),) = aggregates(
            specs, partials_of(specs, golden("mem_and_pod_metrics.jsonl"))
        ).items()
        (usage,) = (usage for usage in found.usages if usage.column("dimensions#namespace") == "website")
        publisher = Publisher("aggregate", "monasca", "")
        version_ms = expected["creation_time"] * 1000
        made = output(publisher, specs.transforms[metric_id], usage, period_ms, version_ms=version_ms)
        self.assertEqual(expected, json.loads(made.value))

    def test_each_field_is_in_the_page(self):
        fields = (
            *reader._PRE_TRANSFORM_FIELDS,
            *reader._TRANSFORM_FIELDS,
            *reader._PARAMETER_FIELDS,
            *reader._FILTER_FIELDS,
        )
        for name in fields:
            self.assertIn(f"``{name}``", self.page)


class OwnJobTest(base.BaseTestCase):
    def test_the_page_has_each_step_and_each_column_of_partials(self):
        page = (SOURCE / "user" / "own-job.rst").read_text()
        steps = functions_in(Path(dataframes.__file__)) & set(dataframes.__all__)
        self.assertEqual(set(dataframes.__all__), steps)
        for step in steps:
            self.assertIn(f"``{step}(", page)
        for column in dataframes.PARTIAL_COLUMNS:
            self.assertIn(f"``{column.replace('latest_', 'oldest_')}``", page)

    def test_the_examples_of_the_page_are_run_by_tests(self):
        page = (SOURCE / "user" / "own-job.rst").read_text()
        for example in re.findall(r"literalinclude:: \.\./\.\./\.\./(\S+)", page):
            self.assertTrue((ROOT / example).exists(), example)


class LinksTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.readme = (ROOT / "README.rst").read_text()

    def test_each_page_of_the_readme_exists(self):
        pages = re.findall(r"``([a-z_]+/[a-z_]+)\.html``", self.readme)
        self.assertGreater(len(pages), 9)
        for page in pages:
            self.assertTrue((SOURCE / f"{page}.rst").exists(), page)

    def test_the_readme_has_no_relative_link_or_image_because_pypi_would_not_resolve_it(self):
        self.assertEqual([], re.findall(r"<([^>:]+)>`_", self.readme))
        self.assertEqual([], re.findall(r"^\.\. (?:image|figure):: (?!https:)(\S+)", self.readme, re.MULTILINE))


class ServicesTest(base.BaseTestCase):
    def test_each_service_has_a_page_on_running_monitoring_securing_and_upgrading(self):
        for service in ("api", "persister", "pipeline"):
            page = (SOURCE / "admin" / f"{service}.rst").read_text()
            section = page.partition("\nRun, watch, secure, upgrade\n")[2]
            for word in ("Run", "Watch", "Secure", "Upgrade"):
                self.assertIn(f"\n* **{word}**: ", section, service)


class ReferenceTest(base.BaseTestCase):
    def test_each_public_name_has_its_entry(self):
        public = {f"monasca_common.kafka.{name}" for name in set(kafka.__all__) - {"Headers", "dead_letters"}}
        public |= {f"monasca_common.kafka.testing.{name}" for name in testing.__all__}
        public |= {f"monasca_common.kafka.aio.{name}" for name in aio.__all__}
        self.assertEqual(set(), public - entries_of_the_reference())

    def test_each_name_that_pages_and_examples_import_has_its_entry(self):
        entries = entries_of_the_reference() | {"monasca_common.kafka.dead_letters"}
        own_service = ROOT / "examples" / "own_service.py"  # for contributors
        programs = {path: path.read_text() for path in (ROOT / "examples").rglob("*.py") if path != own_service}
        for page in (ROOT / "README.rst", *(SOURCE / "user").glob("*.rst"), *(SOURCE / "configuration").glob("*.rst")):
            for number, block in enumerate(
                re.findall(r"code-block:: python\n(?:   :.*\n)*\n((?:   .*\n|\n)+)", page.read_text())
            ):
                programs[page, number] = textwrap.dedent(block)
        for source, program in programs.items():
            self.assertEqual(set(), imported_names(program) - entries, source)


def entries_of_the_reference():
    """Return the full name of each entry."""
    found = set()
    for page in (SOURCE / "reference").glob("*.rst"):
        module = ""
        for directive, name in re.findall(
            r"^\.\. (py:currentmodule|auto\w+):: ([\w.]+)", page.read_text(), re.MULTILINE
        ):
            if directive == "py:currentmodule":
                module = name
            found.add(f"{module}.{name}")
    return found


def imported_names(program):
    """Return the full names that a program imports from this package, or uses as attributes of its modules."""
    tree = ast.parse(program)
    modules, names = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("monasca_common"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if is_module(full):
                    modules[alias.name] = full
                else:
                    names.add(full)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names.add(f"{modules[node.value.id]}.{node.attr}")
    return names


def is_module(name):
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def rules(page):
    """Return the text of each rule of the page by its number."""
    texts = re.split(r"^(?=\d+\. +\*\*)", page, flags=re.MULTILINE)[1:]
    return {int(text.partition(".")[0]): text for text in texts}


class EverydayTests:
    """The classes and tests in these folders that are not marked as periodic, read from their source."""

    def __init__(self, *folders):
        paths = [path for folder in folders or (PACKAGE / "tests",) for path in folder.rglob("*.py")]
        self.classes = {path: classes_in(path) for path in paths}
        self.subclasses = collections.defaultdict(list)
        for node in itertools.chain.from_iterable(self.classes.values()):
            for parent in node.bases:
                self.subclasses[ast.unparse(parent).rpartition(".")[2]].append(node)

    def names(self, path, test):
        """Return "path class test" for each class of a file that has the test and runs it every day."""
        return [
            f"{path} {node.name} {test}"
            for node in self.classes[path]
            for function in node.body
            if getattr(function, "name", "") == test and not is_marked(function) and self.runs(node)
        ]

    def runs(self, node):
        """Return whether the class, or one that inherits from it, is in the everyday run."""
        below = self.subclasses[node.name]
        return any(map(self.runs, below)) if below else not is_marked(node)


def classes_in(path):
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def is_marked(node):
    return any(ast.unparse(decorator).startswith("periodic(") for decorator in node.decorator_list)


def loaded(path):
    """Import a module that is in no package, with its folder on the path."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("loaded_" + path.stem.strip("_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def functions_in(path):
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
