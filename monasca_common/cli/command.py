# SPDX-License-Identifier: Apache-2.0
"""What all commands have in common: how they print, and how they say what is wrong."""

from __future__ import annotations

import argparse
import datetime
from typing import ClassVar

from cliff.command import Command

from monasca_common.kafka.extras import remedy


class MonascaCommand(Command):
    """``extra``: the extra of this package that installs what the command imports."""

    extra: ClassVar[str] = ""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """The exit status; 1, and the extra's name on standard error, where something is not installed."""
        try:
            return int(super().run(parsed_args))
        except ImportError as error:
            return self.complain(remedy(error, self.extra))

    def complain(self, text: str) -> int:
        """One line on standard error; the exit status 1."""
        self.app.stderr.write(f"monasca-common {self.cmd_name}: {text}\n")
        return 1

    def print(self, *lines: str) -> None:
        self.app.stdout.write("\n".join(lines) + "\n")
        self.app.stdout.flush()


def positive(text: str) -> int:
    """The type of an argument that counts something."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: write a number, 1 or greater")
    return int(text)


def moment_ms(text: str) -> int:
    """The type of an argument that is a time, in UTC where it names no zone."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write one such as 2026-01-31T06:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)
