# SPDX-License-Identifier: Apache-2.0
"""The directive ``command-help``: the help of commands whose names match a pattern, from their parsers.

::

    .. command-help:: lag *
"""

from __future__ import annotations

import argparse
import fnmatch
import re
from collections.abc import Iterator
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from monasca_common.cli.main import MonascaCommon

_EXAMPLE = "monasca-common "
_CODE_OR_SPECIAL = re.compile(r"`([^`]+)`|([\\*|_])")


class CommandHelp(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        app = MonascaCommon()
        lines: list[str] = []
        for name, entry in sorted(app.command_manager):
            if fnmatch.fnmatchcase(name, self.arguments[0]):
                lines += _lines(name, entry.load()(app, None, cmd_name=name).get_parser(f"{_EXAMPLE}{name}"))
        if not lines:
            raise self.error(f"no command matches {self.arguments[0]!r}")
        return self.parse_text_to_nodes(StringList(lines, source="command-help"), allow_section_headings=True)


def _lines(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (name, "-" * len(name), "")
    for line in (parser.description or "").splitlines():
        yield from ("", "::", "", f"   {line}", "") if line.startswith(_EXAMPLE) else (_marked_up(line),)
    yield ""
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:
        if not action.option_strings or not _COMMON_OPTIONS.issuperset(action.option_strings):
            yield f"``{formatter._format_action_invocation(action)}``"
            yield from (f"   {_marked_up(formatter._expand_help(action))}", "")


def _marked_up(text: str) -> str:
    """Escape markup, and format text in backquotes as code."""
    return _CODE_OR_SPECIAL.sub(lambda found: f"``{found[1]}``" if found[1] else f"\\{found[2]}", text)


def _options_of(base: type[Any]) -> set[str]:
    command = type("Command", (base,), {"take_action": None})(MonascaCommon(), None)
    return {option for action in command.get_parser("")._actions for option in action.option_strings}


_COMMON_OPTIONS = _options_of(Lister) | _options_of(ShowOne) | {"--config-file"}  # documented in the index


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
