# SPDX-License-Identifier: Apache-2.0
"""The directive ``rule-tests``: the tests of a rule, found by the comment ``# Rule N`` above them."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
FOLDERS = tuple(ROOT / "monasca_common" / folder for folder in ("tests", "storage/testing"))
_MARK = re.compile(r"^ *# Rules? (\d+(?:, \d+)*)\n(?: *@.*\n)* *def (test_\w+)", re.MULTILINE)


@functools.cache
def marked_tests() -> dict[int, list[tuple[Path, str]]]:
    """Return the file and the name of each marked test, by the number of its rule."""
    found: dict[int, list[tuple[Path, str]]] = defaultdict(list)
    for folder in FOLDERS:
        for file in sorted(folder.rglob("*.py")):
            for numbers, test in _MARK.findall(file.read_text()):
                for number in numbers.split(", "):
                    found[int(number)].append((file, test))
    return found


class RuleTests(Directive):
    """``.. rule-tests:: 5``: a list."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        tests = marked_tests()[int(self.arguments[0])]
        lines = [f"- ``{file.relative_to(ROOT / 'monasca_common')}::{test}``" for file, test in tests]
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, source=__file__), self.content_offset, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("rule-tests", RuleTests)
    return {"parallel_read_safe": True}
