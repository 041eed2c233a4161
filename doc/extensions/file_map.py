# SPDX-License-Identifier: Apache-2.0
"""The directive ``file-map``: each module of a package with the first sentence of its docstring.

The map is generated from the code, so it names no removed file and omits no new one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
_LEFT_OUT = frozenset({"tests", "versions", "__pycache__"})


def packages(package: Path) -> Iterator[Path]:
    """Return ``package`` and the folders with modules below it, sorted by name."""
    if any(package.glob("*.py")):
        yield package
    for folder in sorted(path for path in package.iterdir() if path.is_dir() and path.name not in _LEFT_OUT):
        yield from packages(folder)


def modules(package: Path) -> list[Path]:
    """Return the modules of one folder, without its ``__init__.py``."""
    return sorted(path for path in package.glob("*.py") if path.stem != "__init__")


def summary(module: Path) -> str:
    """Return the first paragraph of a module's docstring on one line, or an empty string."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


class FileMap(Directive):
    """``.. file-map:: monasca_common/kafka``: a table for the folder and for each one below it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for package in packages(ROOT / self.arguments[0]):
            lines += [f"**{package.relative_to(ROOT)}/**: {summary(package / '__init__.py')}", ""]
            files = modules(package)
            if files:
                lines += [".. list-table::", "   :widths: 25 75", ""]
                for module in files:
                    lines += [f"   * - ``{module.name}``", f"     - {summary(module)}"]
                lines.append("")
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, source=__file__), self.content_offset, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("file-map", FileMap)
    return {"parallel_read_safe": True}
