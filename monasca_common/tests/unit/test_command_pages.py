# SPDX-License-Identifier: Apache-2.0
"""The pages show existing commands and options, and include the help of every command."""

import argparse
import fnmatch
import importlib.metadata
import re
from pathlib import Path

from cliff.lister import Lister
from cliff.show import ShowOne
from oslotest import base

from monasca_common.cli.main import COMMANDS, MonascaCommon

ROOT = Path(__file__).parents[3]
PAGES = [*sorted((ROOT / "doc" / "source").rglob("*.rst")), ROOT / "README.rst", ROOT / "CONTRIBUTING.rst"]
INDEX = ROOT / "doc" / "source" / "cli" / "index.rst"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_LINE = re.compile(r" *\$ (?:\S*/)?monasca-common (?P<words>.+)")
_INLINE = re.compile(r"`monasca-common (?P<words>[^`\"]+)`")
_SYNOPSIS = re.compile(r"[\[|…]|\b[A-Z]\b")
_HELP_OF = re.compile(r"(?m)^\.\. command-help:: (.+)$")
_HELP = {"--help"}


class AnyTable(Lister):
    def take_action(self, parsed_args):
        return (), ()


class AnyObject(ShowOne):
    def take_action(self, parsed_args):
        return (), ()


def commands():
    """Return {name: parser} of every command."""
    app = MonascaCommon()
    return {
        name: entry.load()(app, None, cmd_name=name).get_parser(f"monasca-common {name}")
        for name, entry in app.command_manager
        if entry.name in importlib.metadata.entry_points(group=COMMANDS).names
    }


def options(parser):
    return {string for action in parser._actions for string in action.option_strings if string.startswith("--")} - _HELP


def options_of_all():
    """Return the options that precede the command."""
    return options(MonascaCommon().parser)


def options_of_tables():
    """Return the options that cliff adds to each command that prints a table."""
    return options(AnyTable(MonascaCommon(), None).get_parser("a table"))


def options_of_objects():
    """Return the options that cliff adds to each command that prints one object."""
    return options(AnyObject(MonascaCommon(), None).get_parser("an object"))


def calls(text):
    """Yield the command lines of a page's console blocks, each on one line, without ``monasca-common``."""
    lines = iter([*text.splitlines(), ""])
    for line in lines:
        found = _LINE.fullmatch(line)
        while found is not None:
            words, line = found["words"], next(lines)
            while words.endswith("\\") or line.strip().startswith(("[", "(", "--")):
                words, line = f"{words.removesuffix(chr(92))} {line.strip()}", next(lines)
            yield words
            found = _LINE.fullmatch(line)


def mentions(text):
    """Return the commands named in sentences of pages and of our messages."""
    return [" ".join(found["words"].split()) for found in _INLINE.finditer(text)]


class CommandPagesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.commands = commands()

    def split(self, words):
        """Return the command and the rest of a line, or ``None`` if the line names no command."""
        named = re.sub(r"^(--\S+ )+", "", words).split()
        for length in range(len(named), 0, -1):
            if (name := " ".join(named[:length])) in self.commands:
                return name, " ".join(named[length:])
        return None, words

    def assert_is_as_it_says(self, words, where):
        name, rest = self.split(words)
        self.assertIsNotNone(name, f"{where}: there is no command {words!r}")
        unknown = set(_OPTION.findall(rest)) - options(self.commands[name]) - _HELP
        self.assertEqual(set(), unknown, f"{where}: {name} has no such options")

    def test_each_command_line_of_a_page_names_a_command_and_its_options(self):
        for page in PAGES:
            for words in calls(page.read_text()):
                self.assert_is_as_it_says(words, page.name)

    def test_each_example_of_a_page_is_accepted_by_its_command(self):
        examples = [words for page in PAGES for words in calls(page.read_text())]
        tried = 0
        for words in examples:
            name, rest = self.split(words)
            if _SYNOPSIS.search(rest.replace("--config-file F", "--config-file f")):
                continue
            tried += 1
            arguments = [part for part in re.sub(r" [&>#|].*", "", f" {rest}").split() if part]
            try:
                self.commands[name].parse_args(arguments)
            except (SystemExit, argparse.ArgumentError) as error:
                self.fail(f"{name} refuses {rest!r}: {error}")
        self.assertGreater(tried, 15)

    def test_each_command_named_in_a_sentence_exists(self):
        files = [*PAGES, *(path for path in (ROOT / "monasca_common").rglob("*.py") if "tests" not in path.parts)]
        for path in files:
            for words in mentions(path.read_text()):
                beginning = words.partition(" --")[0].partition(" |")[0]
                family = any(name.startswith(f"{beginning} ") for name in self.commands)
                if not family:
                    self.assert_is_as_it_says(words, path.name)

    def test_each_command_has_its_generated_options_on_one_page(self):
        patterns = [pattern for page in PAGES for pattern in _HELP_OF.findall(page.read_text())]
        for name in self.commands:
            matching = [pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)]
            self.assertEqual(1, len(matching), f"{name} is in these directives command-help: {matching}")

    def test_the_options_of_all_commands_are_documented(self):
        named = set(_OPTION.findall(INDEX.read_text()))
        self.assertLessEqual((options_of_all() | options_of_tables() | options_of_objects()) - _HELP, named)


class ReadingTest(base.BaseTestCase):
    def test_a_command_line_ends_where_its_arguments_end(self):
        text = """
   $ monasca-common db upgrade --config-file F
   The schema is 0024 now; it was not there.
   $ .venv/bin/monasca-common offsets reset --group G \\
       --to-latest
   $ monasca-common pipeline run JOB [--once]
                                     [--from TIME]
   $ monasca-common api --config-file F
"""
        self.assertEqual(
            [
                "db upgrade --config-file F",
                "offsets reset --group G  --to-latest",
                "pipeline run JOB [--once] [--from TIME]",
                "api --config-file F",
            ],
            list(calls(text)),
        )

    def test_a_command_in_a_sentence_can_span_two_lines(self):
        self.assertEqual(["api --config-file F"], mentions("``monasca-common api\n--config-file F`` serves"))
