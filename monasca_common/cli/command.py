# SPDX-License-Identifier: Apache-2.0
"""The base classes of commands: their output, errors, exit statuses and common arguments."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, ClassVar

from cliff.columns import FormattableColumn
from cliff.command import Command
from cliff.lister import Lister
from oslo_config import cfg

from monasca_common.alarms.errors import AlarmsError
from monasca_common.cli import configuration
from monasca_common.kafka import Admin, plugins
from monasca_common.kafka.config import KAFKA_GROUP, connection_settings
from monasca_common.kafka.errors import ConfigurationError, MessagingError
from monasca_common.kafka.extras import remedy
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.storage.errors import StorageError

# Exit statuses in addition to 0 (success), 1 (failure), 2 (wrong usage) and 130 (Ctrl-C)
NOT_ANSWERED = 2  # the brokers do not respond
NOTHING_FOUND = 3
PARTLY_DONE = 4
TERMINATED = 143

_PROGRAM = "monasca-common "
_EXAMPLE_OR_PARAGRAPH = re.compile(rf"\n\n|\n(?={_PROGRAM})")
_TEXT_FORMATS = frozenset({"csv", "shell", "value"})
_EXPANDED = re.compile(r"[\\$`]")  # by a shell, within quotation marks
_AGAIN_SECONDS = 0.05
_MOST_COUNTED = 2**31 - 1  # of Kafka's requests, and of limits of rows in databases
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class _Help(argparse.HelpFormatter):
    """Formats help: keeps the paragraphs of a docstring, and puts each example on its own line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = _EXAMPLE_OR_PARAGRAPH.split(text)
        filled = super()._fill_text
        return "\n".join(part if part.startswith(_PROGRAM) else filled(part, width, indent) for part in parts)


class Terminated(KeyboardInterrupt):
    """Interrupts a command after SIGTERM or another signal, as Ctrl-C does."""


class NothingFound(Exception):
    """Ends a command with exit status 3, and prints the text on standard error."""


class MonascaCommand(Command):
    """A command that reads configuration files, and reports errors in one line.

    ``extra``: the extra of this package that installs the command's imports. ``configured``: whether the command has
    the option ``--config-file``. ``reported``: the errors that end the command with one line on standard error and the
    exit status ``failed``. ``interrupting``: the signals that abort transactions and print results, as Ctrl-C does.
    ``terminated``: the exit status after such a signal. ``_status``: the exit status if no error is raised.
    """

    extra: ClassVar[str] = ""
    configured: ClassVar[bool] = True
    reported: ClassVar[tuple[type[Exception], ...]] = (MessagingError, StorageError, AlarmsError, cfg.Error)
    failed: ClassVar[int] = 1
    interrupting: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM,)
    terminated: ClassVar[int] = TERMINATED
    _status = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.formatter_class = _Help
        if self.configured:
            configuration.add_arguments(parser)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command and return its exit status. If a package is missing, report the extra and return 1."""
        try:
            with interrupted_by(self.interrupting), no_signal_lost(), interrupts_unwrapped():
                return int(super().run(parsed_args)) or self._status
        except Terminated:
            return self.terminated
        except ImportError as error:
            return self.report(remedy(error, self.extra))
        except NothingFound as error:
            self.report(str(error))
            return NOTHING_FOUND
        except self.reported as error:
            self.report(str(error))
            return self.failed

    def read(self, parsed_args: argparse.Namespace) -> cfg.ConfigOpts:
        """Read the configuration files, with the options of all services registered. Raises `ConfigurationError`."""
        conf = configuration.read(parsed_args)
        configuration.register_own_options(conf)
        return conf

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Any]) -> int:
        """Print the result of `take_action` in one of cliff's formats. An empty table is not printed."""
        data = list(data)
        if parsed_args.formatter == "table" and not data and not parsed_args.print_empty:
            return 0
        if parsed_args.formatter in _TEXT_FORMATS:
            data = [list(map(_text, row)) for row in data] if isinstance(self, Lister) else list(map(_text, data))
        if parsed_args.formatter == "shell":  # cliff escapes only quotation marks; any client can send these characters
            data = [_EXPANDED.sub(r"\\\g<0>", each) if isinstance(each, str) else each for each in data]
        return super().produce_output(parsed_args, column_names, data)  # type: ignore[misc,no-any-return]

    def report(self, text: str) -> int:
        """Write one line to standard error and return the exit status 1."""
        self.app.stderr.write(f"monasca-common {self.cmd_name}: {text}\n")
        return 1

    def print(self, *lines: str) -> None:
        self.app.stdout.write("\n".join(lines) + "\n")
        self.app.stdout.flush()

    def note_dry_run(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.execute:
            self.report("nothing was changed: use --execute to apply")


class ObjectColumn(FormattableColumn[Any]):
    """A column that contains text in tables, objects in JSON and YAML, and JSON in other formats."""

    def __init__(self, text: str, value: Any) -> None:
        super().__init__(value)
        self._text = text

    def human_readable(self) -> str:
        return self._text

    def machine_readable(self) -> Any:
        return self._value


def _text(value: Any) -> Any:
    return json.dumps(value.machine_readable()) if isinstance(value, ObjectColumn) else value


class ChangeLister(Lister):
    """Prints a row for each change, even if an error or a signal ends the command."""

    columns: ClassVar[tuple[str, ...]]
    _ended_by: BaseException | None = None

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        """Append a row to ``rows`` for each applied change, or for each change that ``--execute`` would apply."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        self._generate_columns_and_selector(parsed_args, self.columns)  # refuse unknown columns before any change
        rows: list[Sequence[Any]] = []
        try:
            self.change(parsed_args, rows)
        except BaseException as error:
            self._ended_by = error
        return self.columns, rows

    def run(self, parsed_args: argparse.Namespace) -> int:
        status = super().run(parsed_args)
        if self._ended_by is not None:
            raise self._ended_by
        return status


class ClusterCommand(MonascaCommand):
    """A command that queries brokers. Its exit status is 2 if the brokers do not respond."""

    failed = NOT_ANSWERED

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_section(parser)

    def cluster(self, parsed_args: argparse.Namespace) -> tuple[Admin, ConnectionSettings]:
        """Return the client and the connection of the option group. Raises `ConfigurationError`."""
        conf = self.read(parsed_args)
        check_section(conf, parsed_args.section)
        return plugins.load_admin(conf, parsed_args.section), connection_settings(conf, parsed_args.section)


def check_section(conf: cfg.ConfigOpts, section: str) -> None:
    """Raise `ConfigurationError` for a group that no file contains, because it would inherit the brokers of
    ``[kafka]``."""
    if section != KAFKA_GROUP and section not in conf.list_all_sections():
        raise ConfigurationError(f"--section {section}: the configuration has no group [{section}]: correct the name")


@contextlib.contextmanager
def interrupted_by(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Raise an interrupt at these signals. Outside the main thread, do nothing: signals cannot be handled there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = {signum: signal.signal(signum, on_signal) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in before.items():
            if signal.getsignal(signum) is on_signal:  # a running service handles its signals itself
                signal.signal(signum, handler)


@contextlib.contextmanager
def no_signal_lost() -> Iterator[None]:
    """Send a signal again if Python discards its exception, as in destructors and callbacks of weak references."""
    again: list[threading.Timer] = []

    def on_discarded(discarded: sys.UnraisableHookArgs) -> None:
        if not isinstance(discarded.exc_value, KeyboardInterrupt):
            before(discarded)
            return
        signum = signal.SIGTERM if isinstance(discarded.exc_value, Terminated) else signal.SIGINT
        # Signal the main thread, so that it wakes up.
        again.append(threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (main, signum)))
        again[-1].start()

    main = threading.main_thread().ident
    before, sys.unraisablehook = sys.unraisablehook, on_discarded
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in again:
            timer.cancel()


@contextlib.contextmanager
def interrupts_unwrapped() -> Iterator[None]:
    """Raise the interrupt instead of the `SystemError` that Python raises if a client call returns despite an
    interrupt."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """End a continuous command normally on Ctrl-C or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt), interrupts_unwrapped():
        yield


def positive(text: str) -> int:
    """Parse a positive number."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_COUNTED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: use a whole number from 1 to {_MOST_COUNTED}")
    return int(text)


def add_execute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--execute", action="store_true", help="apply the changes (default: only show them)")


def add_section(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--section",
        default=KAFKA_GROUP,
        metavar="S",
        help="the option group with the connection to the brokers (default: %(default)s)",
    )


def add_topics(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--topic", action="append", default=[], metavar="T", help=f"a topic; can be repeated (default: {default})"
    )


def add_name_pattern(parser: argparse.ArgumentParser, option: str, items: str) -> None:
    parser.add_argument(
        option, default="*", metavar="NAME", help=f"only {items} with this name; * and ? are wildcards (default: all)"
    )


def add_since(parser: argparse.ArgumentParser, items: str) -> None:
    parser.add_argument(
        "--since",
        type=moment_ms,
        metavar="TIME",
        help=f"only {items} at or after this time, such as 2026-01-31T06:00:00Z (default time zone: UTC)",
    )


def add_since_and_until(parser: argparse.ArgumentParser, items: str) -> None:
    add_since(parser, items)
    parser.add_argument("--until", type=moment_ms, metavar="TIME", help=f"only {items} before this time")


def add_line_format(parser: argparse.ArgumentParser) -> None:
    """Add ``-f`` to a command that prints while it runs, and therefore cannot use cliff's formats."""
    parser.add_argument(
        "-f",
        "--format",
        dest="formatter",
        choices=("text", "json"),
        default="text",
        help="text, or one JSON object per line (default: %(default)s)",
    )


def moment_ms(text: str) -> int:
    """Parse a time; the default time zone is UTC."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: use a time such as 2026-01-31T06:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    if moment.timestamp() < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is before 1970: use a later time")
    return int(moment.timestamp() * 1000)


def duration_seconds(text: str) -> int:
    """Parse a duration."""
    unit = _UNITS.get(text[-1:])
    if unit is None or not text[:-1].isascii() or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: use a number and s, m, h or d, such as 90m")
    return int(text[:-1]) * unit


def partitions_of_topic(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``topic`` or ``topic:0,1`` into a topic and its partitions; no numbers mean all partitions."""
    topic, colon, numbers = text.partition(":")
    chosen = numbers.split(",") if colon else []
    if not topic or not all(number.isascii() and number.isdigit() for number in chosen):
        raise argparse.ArgumentTypeError(f"{text!r}: write a topic, or its partitions as topic:0,1")
    return topic, tuple(sorted(set(map(int, chosen))))
