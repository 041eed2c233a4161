# SPDX-License-Identifier: Apache-2.0
"""Check names and imports of the package: each name has one meaning, and modules do not import one another in a
circle. ``lint-imports`` checks the layers."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

from oslotest import base

PACKAGE = Path(__file__).parents[2]

# These classes keep their names from monasca-common 3.x.
COMPATIBILITY = ("kafka_lib", "repositories", "simport", "validation")

# Names that two classes may share, with the reason; at most five.
SHARED = {
    "Scenario": "the helpers of two contracts, for storage drivers and for transports",
    "Capability": "the capabilities of storage drivers and of transports",
}


def modules():
    """Return {dotted name: path} of the modules, without tests and ``__init__.py``."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[1] != "tests" and parts[-1] != "__init__":
            found[".".join(parts)] = path
    return found


def imports(paths):
    """Return {module: modules that it imports}, including imports for types and within functions."""
    found = {name: set() for name in paths}
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found[name] |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
    return {name: targets & paths.keys() - {name} for name, targets in found.items()}


def circles(graph):
    """Return {module: imported modules} of the modules that import one another in a circle."""
    left = {name: set(targets) for name, targets in graph.items()}
    while True:
        imported = set().union(*left.values())
        inner = {name for name, targets in left.items() if targets & left.keys() and name in imported}
        if inner == left.keys():
            return left
        left = {name: left[name] & inner for name in inner}


class NamesTest(base.BaseTestCase):
    def test_no_two_classes_share_a_name(self):
        places = defaultdict(list)
        for module, path in modules().items():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name.lstrip("_")].append(module)
        shared = {name: found for name, found in places.items() if len(found) > 1}

        self.assertEqual({}, {name: found for name, found in shared.items() if name not in SHARED})

    def test_at_most_five_names_are_shared_each_for_a_reason(self):
        self.assertLessEqual(len(SHARED), 5)
        self.assertTrue(all(SHARED.values()))


def words(name):
    """Return the words in the name of a module or class, also in the singular: ``SendingPlaces`` contains "place"."""
    parts = {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}
    return parts | {part.removesuffix("s") for part in parts}


def names():
    """Yield (module, name) of each module and each class."""
    for module, path in modules().items():
        if module.split(".")[1] in COMPATIBILITY:
            continue
        yield module, module.rpartition(".")[2]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield module, node.name


class WordsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.page = (PACKAGE.parent / "CONTRIBUTING.rst").read_text().partition("\nWords\n")[2]
        self.replaced = tomllib.loads((PACKAGE.parent / "tools" / "words.toml").read_text())["names"]

    def test_no_module_and_no_class_uses_a_replaced_word(self):
        for module, name in names():
            for word in words(name) & self.replaced.keys():
                self.fail(f"{module}: the word in {name} is {self.replaced[word]!r}, not {word!r}")

    def test_a_replaced_word_is_found_in_each_spelling(self):
        for name in ("places", "_SendingPlace", "sending_place", "HTTPPlaces"):
            self.assertIn("place", words(name))
        self.assertNotIn("place", words("Replacement"))

    def test_the_page_has_at_most_sixty_words_with_a_sentence_each(self):
        rows = re.findall(r"\* - (.+)\n     - (.+)\n", self.page)[1:]
        self.assertLessEqual(len(rows), 60)
        self.assertEqual(len(rows), self.page.count("* - ") - 1)
        for word, meaning in rows:
            self.assertEqual(word, word.strip())
            self.assertRegex(meaning, r"^[A-Z].*\.$")
            self.assertNotIn(". ", meaning)
        self.assertEqual(len(rows), len(dict(rows)))
        self.assertEqual(set(), {word for word, _ in rows} & self.replaced.keys())


class CirclesTest(base.BaseTestCase):
    def test_no_modules_import_one_another_in_a_circle(self):
        self.assertEqual({}, circles(imports(modules())))

    def test_a_circle_is_detected(self):
        graph = {"a": {"b"}, "b": {"a", "c"}, "c": set(), "d": {"a"}}

        self.assertEqual({"a": {"b"}, "b": {"a"}}, circles(graph))
