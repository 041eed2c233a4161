# SPDX-License-Identifier: Apache-2.0
"""The command ``monasca-common``, whose subcommands are classes that entry points name."""

import functools
import importlib.metadata
import io
import logging
import sys
from collections.abc import Sequence
from typing import TextIO, cast

from cliff.app import App
from cliff.commandmanager import CommandManager

from monasca_common.cli.terminal import PlainStream

COMMANDS = "monasca_common.cli"


class _Commands(CommandManager):
    """Loads only the called command, because other commands can need extras that are not installed."""

    def load_commands(self, namespace: str) -> None:
        self.group_list.append(namespace)
        for command in _installed_commands(namespace):
            self.commands[command.name.replace("_", " ")] = command


@functools.cache  # scanning the installed packages takes 0.06 s
def _installed_commands(namespace: str) -> Sequence[importlib.metadata.EntryPoint]:
    return list(importlib.metadata.entry_points(group=namespace))


class MonascaCommon(App):
    """Tools for the Kafka messaging layer of Monasca-like services."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # like standard error: a terminal may lack UTF-8
        super().__init__(
            description="Tools for the Kafka messaging layer of Monasca-like services.",
            version=importlib.metadata.version("monasca-common"),
            command_manager=_Commands(COMMANDS),
            deferred_help=True,
            stdout=cast(TextIO, PlainStream(sys.stdout)),
            stderr=cast(TextIO, PlainStream(sys.stderr)),
        )

    def configure_logging(self) -> None:
        super().configure_logging()
        if self.options.verbose_level <= self.DEFAULT_VERBOSE_LEVEL:
            logging.getLogger("alembic").setLevel(logging.WARNING)  # commands report their errors themselves

    def initialize_app(self, argv: list[str]) -> None:
        """Show the help of a command even if other options, which cliff passes to ``help``, precede ``--help``."""
        if argv[:1] == ["help"]:
            options = (index for index, argument in enumerate(argv) if argument.startswith("-"))
            del argv[next(options, len(argv)) :]

    def interact(self) -> None:
        """Refuse a call without a command; cliff would start a shell."""
        self.parser.error("name a command: monasca-common --help lists them")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    return int(MonascaCommon().run(list(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    sys.exit(main())
