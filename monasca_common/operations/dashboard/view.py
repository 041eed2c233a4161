# SPDX-License-Identifier: Apache-2.0
"""The content of pages before it is converted to HTML: tones, cells, tables and panels, built by pure functions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from monasca_common.operations.dashboard.panel_source import Snapshot

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


class Tone(enum.Enum):
    """The tones, from best to worst. The value is the word next to the symbol, so that color is not the only cue."""

    GOOD = "fine"
    UNKNOWN = "unknown"
    WARNING = "warning"
    ERROR = "error"

    @property
    def css(self) -> str:
        return self.name.lower()

    @property
    def sign(self) -> str:
        return _SIGNS[self]

    @property
    def rank(self) -> int:
        return list(Tone).index(self)


_SIGNS = {Tone.GOOD: "\N{CHECK MARK}", Tone.UNKNOWN: "?", Tone.WARNING: "!", Tone.ERROR: "\N{MULTIPLICATION X}"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell. ``shade``: its style in a heat map. ``trend``: the points of a sparkline, each from 0 to 1, oldest
    first. ``note``: the text for tooltips and screen readers."""

    text: str
    tone: Tone | None = None
    href: str = ""
    note: str = ""
    is_number: bool = False
    shade: str = ""
    trend: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table row. ``name``: the text that the filter matches. Rows are sorted by tone, then by ``weight``, worst
    first."""

    name: str
    tone: Tone
    weight: float
    cells: tuple[Cell, ...]


class ConcernKind(enum.Enum):
    """The kinds of concerns, worst first. The value completes the headline "Messages ..."."""

    LOST = "lost"
    AT_RISK = "at risk"
    LATE = "late"
    NOT_HANDLED = "not handled"
    UNKNOWN = ""

    @property
    def rank(self) -> int:
        return list(ConcernKind).index(self)


@dataclass(frozen=True, slots=True)
class Concern:
    """A problem in one sentence. ``messages``: the number of affected messages, or 0 if it is unknown."""

    tone: Tone
    text: str
    kind: ConcernKind = ConcernKind.LATE
    messages: int = 0


@dataclass(frozen=True, slots=True)
class PanelView:
    """A panel. ``summary``: one sentence. ``explanation``: the meaning of the columns. ``digest``: rows for the
    overview, if they differ. ``stale``: the reason why its figures are old or missing. ``header``: the index of the
    cell that names its row. ``idle``: the checks that are switched off. ``group``: the consumer group, if it shows only
    one.
    """

    name: str
    title: str
    summary: str
    explanation: str
    columns: tuple[str, ...] = ()
    rows: tuple[TableRow, ...] = ()
    digest: tuple[TableRow, ...] = ()
    concerns: tuple[Concern, ...] = ()
    stale: str = ""
    header: int = 1
    idle: str = ""
    group: str = ""

    @property
    def tone(self) -> Tone:
        if self.idle:
            return Tone.UNKNOWN
        return worst([*(each.tone for each in self.concerns), *([Tone.UNKNOWN] if self.stale else [])])

    @property
    def href(self) -> str:
        return f"/{self.name}"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a panel's rows. ``number`` starts at 1. ``found``: the number of rows that match the filter."""

    rows: tuple[TableRow, ...]
    number: int
    count: int
    found: int
    find: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on the cluster at the top of a page."""

    tone: Tone
    headline: str
    concerns: tuple[tuple[Concern, str], ...]


def worst(tones: Iterable[Tone]) -> Tone:
    return max(tones, key=lambda each: each.rank, default=Tone.GOOD)


def page_of(rows: Sequence[TableRow], number: int, find: str, size: int) -> Page:
    """Return a page, or the last page if ``number`` is too large."""
    wanted = find.casefold()
    found = [row for row in rows if wanted in row.name.casefold()]
    found.sort(key=lambda row: (-row.tone.rank, -row.weight, row.name))
    count = max(1, -(-len(found) // size))
    number = min(max(1, number), count)
    return Page(tuple(found[(number - 1) * size : number * size]), number, count, len(found), find)


def panel_of(
    snapshot: Snapshot[Any], empty: PanelView, shown: Callable[[PanelView], PanelView], now_ms: int
) -> PanelView:
    """Return the panel, filled by ``shown`` if there are figures, and with a remark if they are old or missing."""
    view = empty if snapshot.figures is None else shown(empty)
    if snapshot.error:
        since = f"not reachable since {clock(snapshot.failing_since_ms or now_ms)}: {snapshot.error}"
        return replace(view, stale=since, summary=view.summary if snapshot.figures is not None else "No data.")
    if snapshot.figures is None:
        return replace(view, stale="the first check is running", summary="No data yet.")
    return view


def verdict(panels: Sequence[PanelView]) -> Verdict:
    """Return the headline and all concerns in the order of their kinds. The headline reports no problem only if every
    panel has current data."""
    found = [(concern, panel.href) for panel in panels for concern in panel.concerns]
    found += [
        (Concern(Tone.UNKNOWN, f"{panel.title}: {panel.stale}", ConcernKind.UNKNOWN), panel.href)
        for panel in panels
        if panel.stale
    ]
    found.sort(key=lambda each: (each[0].kind.rank, -each[0].tone.rank, -each[0].messages))
    counts = {tone: sum(concern.tone is tone for concern, _ in found) for tone in Tone}
    parts = [
        count(counts[Tone.ERROR], "error", "errors") if counts[Tone.ERROR] else "",
        count(counts[Tone.WARNING], "warning", "warnings") if counts[Tone.WARNING] else "",
        count(counts[Tone.UNKNOWN], "panel without current data", "panels without current data")
        if counts[Tone.UNKNOWN]
        else "",
    ]
    problems = ", ".join(part for part in parts if part)
    kinds = ", ".join(dict.fromkeys(concern.kind.value for concern, _ in found if concern.kind.value))
    idle = "".join(f"; {panel.idle}" for panel in panels if panel.idle)
    headline = f"{f'Messages {kinds}: ' if kinds else ''}{problems}." if problems else f"Nothing is wrong{idle}."
    return Verdict(worst(concern.tone for concern, _ in found), headline, tuple(found))


def count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, name, lower, lower_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if seconds >= unit:
            rest = int(seconds % unit // lower)
            return f"{int(seconds // unit)} {name}{f' {rest} {lower_name}' if rest else ''}"
    return f"{seconds:.0f} s"


def clock(time_ms: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return the time in UTC, or in milliseconds if no calendar date fits, because clients may set any timestamp."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def rate(per_second: float | None) -> str:
    if per_second is None:
        return "\N{EN DASH}"
    return f"{per_second:,.1f}" if per_second < 100 else f"{per_second:,.0f}"
