# SPDX-License-Identifier: Apache-2.0
"""The directive ``old-options``: the options of earlier services that a module declares, and their replacements."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from monasca_common.kafka.config.legacy import Action, OldGroup, OldOption

_ACTIONS = {
    Action.RENAMED: "Renamed, still read",
    Action.SERVICE: "Read by the service",
    Action.IGNORED: "Ignored with a warning",
}


def rows(module: str) -> Iterator[tuple[str, str, str]]:
    """Yield the old option, the group it was in, and its replacement, for each declaration of ``module``."""
    declared = importlib.import_module(module)
    options: tuple[OldOption, ...] = getattr(declared, "OLD_OPTIONS", ())
    for old in options:
        home = "``[kafka]`` and groups of consumers" if old.consumers else "``[kafka]``"
        yield f"``{old.name}``", home, f"{_ACTIONS[old.action]}: {old.note}"
    groups: tuple[OldGroup, ...] = declared.OLD_GROUPS
    for group in groups:
        for old in group.options:
            yield f"``{old.name}``", f"``[{group.name}]``", f"{_ACTIONS[old.action]}: {old.note}"
        if group.note is not None:
            name = "any other" if group.options else "all"
            yield name, f"``[{group.name}]``", f"{_ACTIONS[Action.IGNORED]}: {group.note}"


class OldOptions(Directive):
    """``.. old-options:: monasca_common.kafka.config.legacy``: one table."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines = [".. list-table::", "   :header-rows: 1", ""]
        for first, *others in (("Old option", "Group", "Replacement"), *rows(self.arguments[0])):
            lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, source=__file__), self.content_offset, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("old-options", OldOptions)
    return {"parallel_read_safe": True}
