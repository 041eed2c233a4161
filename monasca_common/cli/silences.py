# SPDX-License-Identifier: Apache-2.0
"""``monasca-common notification silence add | list | remove``: silences of a tenant, for operators."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cliff.lister import Lister

from monasca_common.cli import configuration
from monasca_common.cli.command import MonascaCommand, ObjectColumn, moment_ms, positive
from monasca_common.models import times

if TYPE_CHECKING:
    from monasca_common.alarms.silences import Silence, Silences

_MOST_LISTED = 10_000


class _SilenceCommand(MonascaCommand):
    """Uses the database of [alarms] connection."""

    extra = "notification"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--tenant", required=True, help="the id of the project")
        return parser


class SilenceAdd(_SilenceCommand):
    """Suppress notifications of a tenant's alarms with these dimensions for some time.

    Suppressed notifications are stored but not sent. For example, while a host is repaired:
    monasca-common notification silence add --tenant t1 --dimension hostname=web-1 --minutes 60 --author ann
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--dimension",
            type=_dimension,
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="a dimension of a metric of the alarm; if repeated, one metric must have all (default: all alarms)",
        )
        parser.add_argument("--from", type=moment_ms, dest="begin_ms", metavar="TIME", help="the begin (default: now)")
        until = parser.add_mutually_exclusive_group(required=True)
        until.add_argument("--until", type=moment_ms, dest="until_ms", metavar="TIME", help="the end")
        until.add_argument("--minutes", type=positive, metavar="N", help="the end, N minutes after the begin")
        parser.add_argument("--author", required=True, help="the author")
        parser.add_argument("--comment", default="", help="the reason")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from monasca_common.alarms.silences import Silence

        now_ms = time.time_ns() // 1_000_000
        begin_ms = now_ms if parsed_args.begin_ms is None else parsed_args.begin_ms
        until_ms = parsed_args.until_ms or begin_ms + parsed_args.minutes * 60_000
        dimensions = dict(parsed_args.dimension)
        asked = Silence(parsed_args.tenant, dimensions, begin_ms, until_ms, parsed_args.author, parsed_args.comment)
        with _stored(parsed_args) as stored:
            self.print(stored.create(asked, now_ms).id)
        return 0


class SilenceList(_SilenceCommand, Lister):
    """List a tenant's silences, by their end, latest first.

    For example, the active ones:
    monasca-common notification silence list --tenant t1 --lasting
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--lasting", action="store_true", help="only active silences")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        from monasca_common.alarms.database import Slice, Sort

        at_ms = time.time_ns() // 1_000_000 if parsed_args.lasting else None
        sorts = [Sort("until", descending=True)]
        with _stored(parsed_args) as stored:
            found = stored.found(parsed_args.tenant, sorts, Slice(_MOST_LISTED), lasting_at_ms=at_ms)
        return ("id", "from", "until", "dimensions", "author", "comment"), map(_row, found)


class SilenceRemove(_SilenceCommand):
    """End a silence of a tenant.

    For example:
    monasca-common notification silence remove --tenant t1 0123456789abcdef
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("id", help="the id in the output of `monasca-common notification silence list`")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        with _stored(parsed_args) as stored:
            stored.delete(parsed_args.tenant, parsed_args.id)
        return 0


@contextlib.contextmanager
def _stored(parsed_args: argparse.Namespace) -> Iterator[Silences]:
    from monasca_common.alarms.database import AlarmsDatabase
    from monasca_common.alarms.settings import database_settings
    from monasca_common.alarms.silences import Silences

    database = AlarmsDatabase(database_settings(configuration.read(parsed_args)))
    try:
        yield Silences(database)
    finally:
        database.close()


def _dimension(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not a dimension: write key=value")
    return key, value


def _row(silence: Silence) -> Sequence[Any]:
    span = times.shown(silence.from_ms), times.shown(silence.until_ms)
    dimensions = dict(sorted(silence.dimensions.items()))
    text = ", ".join(f"{key}={value}" for key, value in dimensions.items()) or "every alarm"
    return silence.id, *span, ObjectColumn(text, dimensions), silence.author, silence.comment
