# SPDX-License-Identifier: Apache-2.0
"""Lists the tests of each rule in the page of invariants, found by the comment ``# Rule N`` above them."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "monasca_common/tests"
_MARK = re.compile(r"^ *# Rules? (\d+(?:, \d+)*)\n(?: *@.*\n)* *def (test_\w+)", re.MULTILINE)
_RULE = re.compile(r"^(\d+)\. (?=\*\*)", re.MULTILINE)


@functools.cache
def marked_tests() -> dict[int, list[tuple[Path, str]]]:
    """Return the file and the name of each marked test by the number of its rule."""
    found: dict[int, list[tuple[Path, str]]] = defaultdict(list)
    for file in sorted(TESTS.rglob("*.py")):
        for numbers, test in _MARK.findall(file.read_text()):
            for number in numbers.split(", "):
                found[int(number)].append((file, test))
    return found


def add_tests(_: Sphinx, docname: str, source: list[str]) -> None:
    """Append to each rule of the page the list of its tests."""
    if docname != "contributor/invariants":
        return
    rules = _RULE.split(source[0])
    for index in range(1, len(rules), 2):
        indent = "\n" + " " * (len(rules[index]) + 2)
        tests = [
            f"{file.relative_to(ROOT / 'monasca_common')}::{test}" for file, test in marked_tests()[int(rules[index])]
        ]
        text, heading, rest = rules[index + 1].partition("\n\n")
        rules[index] += ". "
        rules[index + 1] = "".join([text, "\n", *(f"{indent}- ``{test}``" for test in tests), heading, rest])
    source[0] = "".join(rules)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_tests)
    return {"parallel_read_safe": True}
