# SPDX-License-Identifier: Apache-2.0
"""``monasca-common lag list | show | watch``: whether consumers keep up, and if not, in which way."""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cliff.lister import Lister

from monasca_common.cli.command import NOTHING_FOUND, ClusterCommand, add_watch_options, positive, until_interrupted
from monasca_common.kafka import Admin
from monasca_common.kafka.errors import AuthorizationError, ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.group_positions import (
    DatabasePositions,
    ReadPositions,
    no_database,
    position_reader,
    which_counts,
)
from monasca_common.operations.lag.history import (
    LagHistory,
    PartitionHistory,
    following,
    offline_partitions,
    read_history,
)
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagVerdict, LagWindow, group_lag
from monasca_common.operations.settings import DLQ_GROUP, history_topic, lag_window

_FACTS = (
    "status",
    "unread",
    "oldest_unread_seconds",
    "deleted_unread",
    "deleted_in_seconds",
    "lost_in_seconds",
    "expires_soon",
    "truncated",
    "hidden",
    "window",
)
# Where the position is that counts, and whether the verdict is by another one.
_COUNTING = ("kept_in", "copy_differs")
_EVERY_GROUP = "*"
_INTERVAL_SECONDS = 10
_READ_SECONDS = 30.0
_MS = 1000

_Judged = Mapping[str, Mapping[TopicPartition, PartitionHistory]]


class _LagCommand(ClusterCommand):
    """What the commands have in common: when a consumer is judged, and the exit status that comes of it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--window-seconds",
            type=positive,
            metavar="N",
            help="how long a consumer may be silent, or late, before it is judged; too small: pauses look like faults; "
            "too large: faults are reported late (default: [lag] window_seconds)",
        )
        parser.add_argument(
            "--history-topic",
            metavar="T",
            help="where `monasca-common lag serve` keeps what earlier looks found (default: [lag] topic)",
        )
        return parser

    def judge(self, parsed_args: argparse.Namespace, groups: Mapping[str, LagVerdict]) -> None:
        """Note the exit status: 1 where a group is in error, 3 where none was found, which it says once."""
        if groups or parsed_args.group == _EVERY_GROUP:
            self._status = int(any(each.is_error for each in groups.values()))
            return
        if self._status != NOTHING_FOUND:
            self.complain(f"--group {parsed_args.group}: the cluster has no such group: correct its name")
        self._status = NOTHING_FOUND

    def survey(self, parsed_args: argparse.Namespace) -> Survey:
        """Raises `ConfigurationError`."""
        if parsed_args.group == DLQ_GROUP:
            raise ConfigurationError(
                f"--group {DLQ_GROUP}: it reads dead letters when an operator wants it to, and is not judged: "
                "`monasca-common dlq list` shows what waits"
            )
        conf = self.read(parsed_args)
        window = lag_window(conf)
        window = replace(window, seconds=parsed_args.window_seconds or window.seconds)
        history = parsed_args.history_topic or history_topic(conf)
        admin, connection = self.cluster(parsed_args)
        survey = LagSurvey(admin, connection, window, timeout_seconds=_READ_SECONDS)
        return Survey(survey, window, lambda: self._history(admin, connection, history))

    def _history(self, admin: Admin, connection: ConnectionSettings, topic: str) -> LagHistory:
        """An empty one, and a line on standard error that says so, where there is none."""
        try:
            found = read_history(admin, connection, topic, timeout_seconds=_READ_SECONDS)
        except AuthorizationError as error:
            found = None
            self.complain(f"topic {topic} cannot be read: {error}")
        if found is None or found.surveyed_ms is None:
            self.complain(
                "without a history, which `monasca-common lag serve` keeps: old timestamps may look like a stop, and "
                "nothing is known of retention by size"
            )
        return found or LagHistory()

    def positions(self, parsed_args: argparse.Namespace) -> ReadPositions:
        return position_reader(self.read(parsed_args), parsed_args.section)

    def tell_which_counts(self, judged: _Judged, stored: DatabasePositions) -> None:
        """On standard error, where a verdict is by a copy in Kafka, and the database, which counts, differs; and which
        partitions have no leader."""
        lines = which_counts(judged, stored)
        if offline := sorted({each for partitions in judged.values() for each in offline_partitions(partitions)}):
            lines.append(f"not judged, because these partitions have no leader: {', '.join(offline)}")
        if lines:
            self.complain("\n".join(lines))


class Survey:
    """The verdicts of one look after the other, each of which knows those before it. ``read_history``: is called by
    the first look."""

    def __init__(self, cluster: LagSurvey, window: LagWindow, read_history: Callable[[], LagHistory]) -> None:
        self._cluster = cluster
        self._window = window
        self._read_history = read_history
        self._history: LagHistory | None = None

    def groups(self, pattern: str) -> list[str]:
        return fnmatch.filter(self._cluster.groups(), pattern)

    def look(self, groups: list[str]) -> _Judged:
        if self._history is None:
            self._history = self._read_history()
        now_ms = round(time.time() * _MS)
        states = self._cluster.scan(groups, now_ms, history=self._history)
        self._history = following(states, now_ms, self._window)
        return self._history.groups


class LagList(_LagCommand, Lister):
    """Show how each consumer group keeps up: a group is as well as its worst partition.

    Status OK: it keeps up or catches up. WARNING: it moves, and its lag never falls. STALL: it commits the same offset
    again and again. STOP: it leaves messages unread and does not commit. REWIND: it went back. OFFLINE: a partition has
    no leader. The exit status is 1 where a group has one of the last four, or loses unread messages to retention, now
    or soon, as [lag] least_headroom says, or has offsets beyond the end of the log; 2 where the brokers cannot be
    asked; 3 where no group has the name.
    For example, for a program:
    monasca-common lag list --group 1_metrics -f json
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--group",
            default=_EVERY_GROUP,
            metavar="G",
            help="only groups with this name; * and ? stand for other characters",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        survey = self.survey(parsed_args)
        judged = survey.look(survey.groups(parsed_args.group))
        stored = self.positions(parsed_args)()
        self.tell_which_counts(judged, stored)
        groups = _group_lags(judged)
        self.judge(parsed_args, groups)
        rows = (
            (group, len(judged[group]), *_values(each), *_counting(group, judged[group], stored))
            for group, each in groups.items()
        )
        return ("group", "partitions", *_FACTS, *_COUNTING), rows


class LagShow(_LagCommand, Lister):
    """Show how one consumer group keeps up in each partition. Statuses and exit status: as `lag list`.

    For example:
    monasca-common lag show --group 1_metrics
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--group", required=True, metavar="G", help="the consumer group: its option group_id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        survey = self.survey(parsed_args)
        group = parsed_args.group
        partitions = survey.look([group])[group]
        if not partitions:
            raise ConfigurationError(
                f"--group {group}: this group has no offset in any topic: `monasca-common lag list` shows which have"
            )
        stored = self.positions(parsed_args)()
        self.tell_which_counts({group: partitions}, stored)
        self.judge(parsed_args, _group_lags({group: partitions}))
        rows = (
            (*partition, *_values(each.lag), stored.place(group), stored.differ(group, partitions, partition))
            for partition, each in partitions.items()
        )
        return ("topic", "partition", *_FACTS, *_COUNTING), rows


class LagWatch(_LagCommand):
    """Look again and again, and print a line a group whenever its status changes, retention begins or ceases to delete
    what it has not read, or the log begins or ceases to end before its offsets; at first for each.

    Ends with Ctrl-C or SIGTERM, or after --looks. The exit status is that of `lag list` at the last look. For
    example, for a program, once a minute:
    monasca-common lag watch --group 1_metrics --interval 60 -f json
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--group",
            default=_EVERY_GROUP,
            metavar="G",
            help="only groups with this name; * and ? stand for other characters",
        )
        add_watch_options(
            parser,
            interval_seconds=_INTERVAL_SECONDS,
            too_small="a load on the brokers",
            too_large="changes are reported late",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        with until_interrupted():
            self._watch(parsed_args)
        return self._status

    def _watch(self, parsed_args: argparse.Namespace) -> None:
        survey, read_positions = self.survey(parsed_args), self.positions(parsed_args)
        known: dict[str, LagVerdict] = {}

        def look() -> None:
            judged = survey.look(survey.groups(parsed_args.group))
            groups = _group_lags(judged)
            news = {group: judged[group] for group, lag in groups.items() if _is_news(known.get(group), lag)}
            stored = read_positions() if news else no_database()
            is_json = parsed_args.formatter == "json"
            for group, partitions in news.items():
                counting = dict(zip(_COUNTING, _counting(group, partitions, stored), strict=True))
                self.print(_line(group, known.get(group), groups[group], counting if is_json else None))
            self.tell_which_counts(news, stored)
            known.clear()
            known.update(groups)
            self.judge(parsed_args, groups)

        self.watch(parsed_args, look)


def _group_lags(judged: _Judged) -> dict[str, LagVerdict]:
    return {group: group_lag(known.lag for known in partitions.values()) for group, partitions in judged.items()}


def _counting(
    group: str, judged: Mapping[TopicPartition, PartitionHistory], stored: DatabasePositions
) -> tuple[str, bool | None]:
    """In the order of `_COUNTING`."""
    return stored.place(group), stored.differ(group, judged)


def _values(lag: LagVerdict) -> tuple[Any, ...]:
    """In the order of `_FACTS`."""
    headroom, lost = (None if each is None else round(each) for each in (lag.headroom_seconds, lag.lost_in_seconds))
    seconds, completeness = round(lag.seconds, 1), round(lag.completeness, 2)
    facts = (lag.status.name, lag.messages, seconds, lag.deleted, headroom, lost, lag.expires_soon)
    return *facts, lag.truncated, lag.hidden, completeness


def _is_news(before: LagVerdict | None, lag: LagVerdict) -> bool:
    """Whether what is told of a group has changed."""
    return before is None or _told(before) != _told(lag)


def _told(lag: LagVerdict) -> Sequence[object]:
    return lag.status, lag.expires_soon, lag.deleted > 0, lag.truncated > 0, lag.hidden > 0


def _line(group: str, before: LagVerdict | None, lag: LagVerdict, counting: Mapping[str, Any] | None) -> str:
    """JSON with these facts of which position counts, or a text."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    former = None if before is None else before.status.name
    if counting is not None:
        facts: Mapping[str, Any] = dict(zip(_FACTS, _values(lag), strict=True))
        return json.dumps({"time": now, "group": group, "before": former, **facts, **counting})
    change = lag.status.name if former in (None, lag.status.name) else f"{former} -> {lag.status.name}"
    lost = f"; {lag.deleted:,} were deleted unread" if lag.deleted else ""
    beyond = f"; its offsets are {lag.truncated:,} beyond the end of the log" if lag.truncated else ""
    hidden = f"; a transaction that stays open hides {lag.hidden:,} offsets" if lag.hidden else ""
    soon = f"; retention deletes some unread in {lag.lost_in_seconds or 0:.0f} s" if lag.expires_soon else ""
    unread = f"{lag.messages:,} unread, the oldest {lag.seconds:.0f} s old"
    return f"{now} {group}: {change}: {lag.status.meaning}; {unread}{lost}{beyond}{hidden}{soon}"
