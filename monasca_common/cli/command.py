# SPDX-License-Identifier: Apache-2.0
"""What all commands have in common: how they print, and how they say what is wrong."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from monasca_common.kafka.errors import ConfigurationError, MessagingError, RetriableError
from monasca_common.kafka.extras import remedy
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.storage.errors import StorageError

# Exit statuses beside 0 (done), 1 (failed), 2 (wrong usage) and 130 (interrupted by Ctrl-C).
NOT_ANSWERED = 2  # by the brokers
NOTHING_FOUND = 3
PARTLY_DONE = 4
TERMINATED = 143

_PROGRAM = "monasca-common "
_EXAMPLE_OR_PARAGRAPH = re.compile(rf"\n\n|\n(?={_PROGRAM})")
_TEXT_FORMATS = frozenset({"csv", "shell", "value"})
_AGAIN_SECONDS = 0.05
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class _Help(argparse.HelpFormatter):
    """The description of a command as in its docstring: paragraphs, and each example on a line of its own."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = _EXAMPLE_OR_PARAGRAPH.split(text)
        filled = super()._fill_text
        return "\n".join(part if part.startswith(_PROGRAM) else filled(part, width, indent) for part in parts)


class Terminated(KeyboardInterrupt):
    """SIGTERM ends a command in the same order as Ctrl-C."""


class NothingFound(Exception):
    """Ends a command with the exit status 3, and this on standard error."""


class MonascaCommand(Command):
    """A command that reads configuration files, and reports errors in one line.

    ``extra``: the extra of this package that installs what the command imports. ``configured``: whether it has the
    option ``--config-file``. ``reported``: the errors that end it with one line on standard error and the exit status
    ``failed``. ``terminated``: its exit status after SIGTERM, which interrupts it as Ctrl-C does: transactions are
    aborted, and what was done is printed. ``_status``: its exit status if nothing raises.
    """

    extra: ClassVar[str] = ""
    configured: ClassVar[bool] = True
    reported: ClassVar[tuple[type[Exception], ...]] = (MessagingError, StorageError, AlarmsError, cfg.Error)
    failed: ClassVar[int] = 1
    terminated: ClassVar[int] = TERMINATED
    _status = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.formatter_class = _Help
        if self.configured:
            configuration.add_arguments(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return the exit status; if something is not installed, 1, and the extra's name on standard error."""
        try:
            with interrupted_by_sigterm(), no_signal_lost(), interrupts_as_they_are():
                return int(super().run(parsed_args)) or self._status
        except Terminated:
            return self.terminated
        except ImportError as error:
            return self.complain(remedy(error, self.extra))
        except NothingFound as error:
            self.complain(str(error))
            return NOTHING_FOUND
        except self.reported as error:
            self.complain(str(error))
            return self.failed

    def read(self, parsed_args: argparse.Namespace) -> cfg.ConfigOpts:
        """Read the files, in which no option of a service is unknown. Raises `ConfigurationError`."""
        conf = configuration.read(parsed_args)
        configuration.register_own_options(conf)
        return conf

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Any]) -> int:
        """Print what `take_action` of a command with cliff's formats returned, but no empty table."""
        data = list(data)
        if parsed_args.formatter == "table" and not data and not parsed_args.print_empty:
            return 0
        if parsed_args.formatter in _TEXT_FORMATS:
            data = [list(map(_text, row)) for row in data] if isinstance(self, Lister) else list(map(_text, data))
        return super().produce_output(parsed_args, column_names, data)  # type: ignore[misc,no-any-return]

    def complain(self, text: str) -> int:
        """Write one line to standard error; return the exit status 1."""
        self.app.stderr.write(f"monasca-common {self.cmd_name}: {text}\n")
        return 1

    def print(self, *lines: str) -> None:
        self.app.stdout.write("\n".join(lines) + "\n")
        self.app.stdout.flush()

    def note_dry_run(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.execute:
            self.complain("nothing was changed: --execute does it")


class ObjectColumn(FormattableColumn[Any]):
    """A text in tables, and an object for programs; formats of text have it as JSON."""

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
    """Prints a row for each thing that it did, also if an error or a signal ends it early."""

    columns: ClassVar[tuple[str, ...]]
    _ended_by: BaseException | None = None

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        """Add to ``rows`` what was done, or what ``--execute`` would do."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
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
    """A command that queries the brokers of a configuration. Without an answer its exit status is 2."""

    failed = NOT_ANSWERED

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--section",
            default=KAFKA_GROUP,
            metavar="S",
            help="the group of options in the configuration whose brokers are queried (default: %(default)s)",
        )
        return parser

    def watch(
        self,
        parsed_args: argparse.Namespace,
        look: Callable[[], object],
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Look until --looks. A look that the brokers do not answer has the status 2 and is repeated after the
        interval; an outage is reported once."""
        looks, outage = 0, False
        while looks != parsed_args.looks:
            try:
                if looks:
                    (wait or time.sleep)(parsed_args.interval)
                look()
                outage = False
            except RetriableError as error:
                self._status = NOT_ANSWERED
                if not outage:
                    self.complain(f"no result, and repeated every {parsed_args.interval} s: {error}")
                outage = True
            looks += 1

    def cluster(self, parsed_args: argparse.Namespace) -> tuple[Admin, ConnectionSettings]:
        """Raises `ConfigurationError`."""
        conf = self.read(parsed_args)
        check_section(conf, parsed_args.section)
        return plugins.load_admin(conf, parsed_args.section), connection_settings(conf, parsed_args.section)


def check_section(conf: cfg.ConfigOpts, section: str) -> None:
    """Raise `ConfigurationError` for a group that no file has: it would inherit the brokers of ``[kafka]``."""
    if section != KAFKA_GROUP and section not in conf.list_all_sections():
        raise ConfigurationError(
            f"--section {section}: there is no group [{section}] in the configuration: correct its name"
        )


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Nothing where signals cannot be handled: outside the main thread of a program that calls a command."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is on_signal:  # a service that runs handles its signals itself
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def no_signal_lost() -> Iterator[None]:
    """Python discards what the handler of a signal raises within a destructor, or a callback of a weak reference: the
    signal is sent again."""
    again: list[threading.Timer] = []

    def on_discarded(discarded: sys.UnraisableHookArgs) -> None:
        if not isinstance(discarded.exc_value, KeyboardInterrupt):
            before(discarded)
            return
        signum = signal.SIGTERM if isinstance(discarded.exc_value, Terminated) else signal.SIGINT
        # To the main thread, which it is to wake up.
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
def interrupts_as_they_are() -> Iterator[None]:
    """Some calls of the client return a result although a signal came meanwhile, which is a `SystemError` to Python."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Around what would go on for good, and is in order when it is ended by Ctrl-C or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt), interrupts_as_they_are():
        yield


def positive(text: str) -> int:
    """The type of an argument that counts something."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: write a number, 1 or greater")
    return int(text)


def add_execute(parser: argparse.ArgumentParser) -> None:
    """Of a command that shows a change, and makes it only with --execute."""
    parser.add_argument("--execute", action="store_true", help="make the change (default: only show it)")


def add_line_format(parser: argparse.ArgumentParser) -> None:
    """Of a command that prints lines while it runs, where the commands with tables have cliff's formats."""
    parser.add_argument(
        "-f",
        "--format",
        dest="formatter",
        choices=("text", "json"),
        default="text",
        help="text, or an object of JSON in each line (default: %(default)s)",
    )


def add_watch_options(
    parser: argparse.ArgumentParser, *, interval_seconds: int, too_small: str, too_large: str
) -> None:
    """Of a command that looks again and again. ``too_small``, ``too_large``: what such an interval costs."""
    parser.add_argument(
        "--interval",
        type=positive,
        default=interval_seconds,
        metavar="N",
        help=f"how many seconds lie between two looks; too small: {too_small}; too large: {too_large} "
        "(default: %(default)s)",
    )
    parser.add_argument("--looks", type=positive, metavar="N", help="end after so many looks (default: never)")
    add_line_format(parser)


def moment_ms(text: str) -> int:
    """The type of an argument that is a time, in UTC where it names no zone."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write one such as 2026-01-31T06:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    if moment.timestamp() < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is before 1970: write a later time")
    return int(moment.timestamp() * 1000)


def duration_seconds(text: str) -> int:
    """The type of an argument that is a length of time."""
    unit = _UNITS.get(text[-1:])
    if unit is None or not text[:-1].isascii() or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write a number and s, m, h or d, such as 90m")
    return int(text[:-1]) * unit


def partitions_of_topic(text: str) -> tuple[str, tuple[int, ...]]:
    """The type of an argument ``topic`` or ``topic:0,1``: the topic, and its partitions; none are all of them."""
    topic, _, numbers = text.partition(":")
    chosen = numbers.split(",") if numbers else []
    if not topic or not all(number.isascii() and number.isdigit() for number in chosen):
        raise argparse.ArgumentTypeError(f"{text!r}: write a topic, or its partitions as topic:0,1")
    return topic, tuple(sorted(set(map(int, chosen))))


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Call ``stop`` at SIGTERM and at Ctrl-C, from now on."""

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
