# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit show | watch``: whether every message that was sent arrived at every tier."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cliff.lister import Lister

from monasca_common.audit.reconciliation import AuditTotals, Reconciliation
from monasca_common.audit.report_log import ReportLog, open_report_log
from monasca_common.audit.reports import bucket_of
from monasca_common.audit.settings import AuditSettings, audit_settings
from monasca_common.cli import progress
from monasca_common.cli.command import (
    NOTHING_FOUND,
    ClusterCommand,
    add_watch_options,
    positive,
    until_interrupted,
)
from monasca_common.kafka.errors import MessagingError
from monasca_common.models import times

_COLUMNS = (
    "topic",
    "bucket",
    "tier",
    "application",
    "verdict",
    "completeness",
    "expected",
    "messages",
    "lost",
    "late",
    "duplicates",
    "surplus",
    "mean_delay_seconds",
    "max_delay_seconds",
)
_READ_SECONDS = 60.0
_INTERVAL_SECONDS = 10
_MS = 1000


class _AuditCommand(ClusterCommand):
    """What the commands have in common: which topics, and how far back."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--topic", default="*", metavar="T", help="only topics with this name; * and ? stand for other characters"
        )
        parser.add_argument(
            "--last-seconds",
            type=positive,
            metavar="N",
            help="how far back; too small: what is older is not shown; too large: it reads much (default: "
            "window_seconds in group [audit])",
        )
        progress.add_argument(parser)
        return parser

    def judge(self, found: Sequence[Reconciliation], parsed_args: argparse.Namespace) -> None:
        """Note the exit status: 1 where something is missing for good, 3 where nothing is known, which it says once."""
        if not found and self._status != NOTHING_FOUND:
            self.complain(
                f"--topic {parsed_args.topic}: nothing was reported of such a topic in this time, so nothing is known "
                "of it: correct its name, look back farther, or turn on the audit of those who write and read it"
            )
        self._status = int(any(each.verdict.is_final for each in found)) if found else NOTHING_FOUND

    def opened(self, parsed_args: argparse.Namespace) -> tuple[AuditSettings, ReportLog]:
        """Raises `ConfigurationError` and `TransportError`."""
        settings = audit_settings(self.read(parsed_args))
        admin, connection = self.cluster(parsed_args)
        since_ms = _since_ms(settings, parsed_args.last_seconds)
        return settings, open_report_log(admin, connection, settings.topic, since_ms)


class AuditShow(_AuditCommand, Lister):
    """Show, for each topic, span of event time and tier, what arrived, what is lost, late or doubled.

    Verdict OK: all arrived. OPEN: something is missing, and the grace period is not over. INCOMPLETE: it is over.
    UNCOUNTED: it is over, and nothing counts what is in the topic, so what arrived is not known. RECREATED: the topic
    was deleted and recreated, so what arrived is not known. The exit status is 1 where something is INCOMPLETE or
    UNCOUNTED, 2 where the brokers cannot be asked, 3 where nothing is known because nothing was reported.
    For example, what is missing of the last hour:
    monasca-common audit show --topic metrics --last-seconds 3600 --missing
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--missing", action="store_true", help="only where something is missing")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        settings, log = self.opened(parsed_args)
        totals = AuditTotals(settings.rules)
        with log:
            add_reports(log, totals, lines=parsed_args.progress)
        if totals.foreign:
            self.complain(
                f"{totals.foreign} reports have buckets of another length and are left out: give all services the "
                "same bucket_seconds in group [audit]"
            )
        if totals.early:
            self.complain(
                f"{totals.early} messages have times more than a day ahead and are left out: correct the clocks of "
                "those who send them"
            )
        found = _chosen(
            totals.reconciliations(_now_ms()), parsed_args.topic, _since_ms(settings, parsed_args.last_seconds)
        )
        self.judge(found, parsed_args)
        return _COLUMNS, (_row(each) for each in found if each.lost or each.late or not parsed_args.missing)


class AuditWatch(_AuditCommand):
    """Balance again and again; print a line when a topic, span and tier becomes INCOMPLETE or UNCOUNTED, and when it is
    OK again.

    Ends with Ctrl-C or SIGTERM, or after --looks. The exit status is 1 where the last look found something of the kind,
    3 where nothing was reported, so that nothing is known. For example, for a program, once a minute:
    monasca-common audit watch --topic metrics --interval 60 -f json
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_watch_options(
            parser,
            interval_seconds=_INTERVAL_SECONDS,
            too_small="a load on this machine",
            too_large="what is missing is reported late",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        with until_interrupted():
            self._watch(parsed_args)
        return self._status

    def _watch(self, parsed_args: argparse.Namespace) -> None:
        settings = audit_settings(self.read(parsed_args))
        incomplete: set[tuple[Any, ...]] = set()

        def look(totals: AuditTotals) -> None:
            since_ms = _since_ms(settings, parsed_args.last_seconds)
            totals.forget(since_ms)
            found = _chosen(totals.reconciliations(_now_ms()), parsed_args.topic, since_ms)
            now = {_key(each) for each in found if each.verdict.is_final}
            for each in found:
                if (_key(each) in now) != (_key(each) in incomplete):
                    self.print(_line(each, as_json=parsed_args.formatter == "json"))
            incomplete.clear()
            incomplete.update(now)
            self.judge(found, parsed_args)

        with _CurrentBook(lambda: self.opened(parsed_args), lines=parsed_args.progress) as current:
            self.watch(parsed_args, lambda: look(current.totals()), current.wait)


class _CurrentBook(contextlib.ExitStack):
    """The reports of a log that is read on and on, and again from its start after an error: some may be missing then.

    ``lines``: see `progress.Shown`."""

    def __init__(self, open_log: Callable[[], tuple[AuditSettings, ReportLog]], *, lines: bool) -> None:
        super().__init__()
        self._open_log = open_log
        self._lines = lines
        self._read: tuple[ReportLog, AuditTotals] | None = None

    def totals(self) -> AuditTotals:
        """Raises `MessagingError`; so does `wait`."""
        if self._read is None:
            settings, log = self._open_log()
            totals = AuditTotals(settings.rules)
            self.enter_context(log)
            with self._closed_at_error():
                add_reports(log, totals, lines=self._lines)
            self._read = log, totals
        return self._read[1]

    def wait(self, seconds: float) -> None:
        """Read what comes in this time."""
        if self._read is None:
            time.sleep(seconds)
            return
        log, totals = self._read
        due = time.monotonic() + seconds
        with self._closed_at_error():
            while time.monotonic() < due:
                for report in log.poll():
                    totals.add(report)

    @contextlib.contextmanager
    def _closed_at_error(self) -> Iterator[None]:
        try:
            yield
        except MessagingError:
            self._read = None
            self.close()
            raise


def add_reports(log: ReportLog, totals: AuditTotals, *, lines: bool) -> None:
    """All that was reported up to now. ``lines``: see `progress.Shown`. Raises `MessagingError`."""
    told = -1
    with progress.Shown("reports", bounded=True, lines=lines) as shown:
        for report in log.read(_READ_SECONDS):
            totals.add(report)
            if told != log.done:
                told = log.done
                shown.tell(log.done, log.left)


def _now_ms() -> int:
    return round(time.time() * _MS)


def _since_ms(settings: AuditSettings, last_seconds: int | None) -> int:
    since_ms = max(0, _now_ms() - (last_seconds or settings.window_seconds) * _MS)
    return bucket_of(since_ms, settings.bucket_seconds)


def _chosen(found: Iterable[Reconciliation], pattern: str, since_ms: int) -> list[Reconciliation]:
    return [each for each in found if each.bucket_ms >= since_ms and fnmatch.fnmatchcase(each.topic, pattern)]


def _key(each: Reconciliation) -> tuple[Any, ...]:
    return each.topic, each.bucket_ms, each.tier, each.application


def _row(each: Reconciliation) -> tuple[Any, ...]:
    """In the order of `_COLUMNS`."""
    return (
        each.topic,
        times.shown(each.bucket_ms),
        each.tier,
        each.application,
        each.verdict.name,
        _completeness(each),
        each.expected,
        each.messages,
        each.lost,
        each.late,
        each.duplicates,
        each.surplus,
        round(each.mean_delay_seconds, 3),
        round(each.max_delay_seconds, 3),
    )


def _completeness(each: Reconciliation) -> float:
    """So that one missing message of a million is not rounded away."""
    rounded = round(each.completeness, 4)
    return rounded if rounded < 1 or each.completeness == 1 else 0.9999


def _line(each: Reconciliation, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(dict(zip(_COLUMNS, _row(each), strict=True)))
    return (
        f"{times.shown(each.bucket_ms)} {each.topic} {each.tier} {each.application}: {each.verdict.name}: "
        f"{each.messages:,} of {each.expected:,}, {each.lost:,} lost, {each.late:,} late"
    )
