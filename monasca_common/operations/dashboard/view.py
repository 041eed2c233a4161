# SPDX-License-Identifier: Apache-2.0
"""What the pages show, before it is HTML: tones, cells, tables, panels. All of it is made by pure functions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from monasca_common.operations.dashboard.panel_source import Snapshot

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


class Tone(enum.Enum):
    """From the best to the worst. The value is the word beside the sign, so that colour is never alone."""

    GOOD = "fine"
    UNKNOWN = "not known"
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
    """``shade``: of a cell of a heat map. ``trend``: the points
    of a small line, each 0 to 1, the oldest first. ``note``: said by the pointer and by screen readers."""

    text: str
    tone: Tone | None = None
    href: str = ""
    note: str = ""
    is_number: bool = False
    shade: str = ""
    trend: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRow:
    """``name``: what a filter looks at. The worst come first: by tone, then by ``weight``."""

    name: str
    tone: Tone
    weight: float
    cells: tuple[Cell, ...]


class Harm(enum.IntEnum):
    """What a concern is about, the worst first."""

    LOST = 0
    LOST_SOON = 1
    LATE = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing that is wrong, in one sentence. ``messages``: how many are affected, if that is known."""

    tone: Tone
    text: str
    harm: Harm = Harm.LATE
    messages: int = 0


@dataclass(frozen=True, slots=True)
class PanelView:
    """``summary``: one sentence. ``explanation``: what the columns mean. ``digest``: rows for the overview, where they
    differ. ``stale``: why its figures are old, or missing. ``header``: which cell names its row.
    ``idle``: what nobody asked to be told. ``group``: the consumer group that it is of alone.
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
    """A part of the rows of a panel. ``number`` begins at 1. ``found``: how many the filter left."""

    rows: tuple[TableRow, ...]
    number: int
    count: int
    found: int
    find: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The line at the very top."""

    tone: Tone
    headline: str
    concerns: tuple[tuple[Concern, str], ...]


def worst(tones: Iterable[Tone]) -> Tone:
    return max(tones, key=lambda each: each.rank, default=Tone.GOOD)


def page_of(rows: Sequence[TableRow], number: int, find: str, size: int) -> Page:
    """A number beyond the last page is the last page."""
    wanted = find.casefold()
    found = [row for row in rows if wanted in row.name.casefold()]
    found.sort(key=lambda row: (-row.tone.rank, -row.weight, row.name))
    count = max(1, -(-len(found) // size))
    number = min(max(1, number), count)
    return Page(tuple(found[(number - 1) * size : number * size]), number, count, len(found), find)


def panel_of(
    snapshot: Snapshot[Any], empty: PanelView, shown: Callable[[PanelView], PanelView], now_ms: int
) -> PanelView:
    """``shown`` fills the panel, once there are figures. What is old, or missing, is said."""
    view = empty if snapshot.figures is None else shown(empty)
    if snapshot.error:
        since = f"not reachable since {clock(snapshot.failing_since_ms or now_ms)}: {snapshot.error}"
        return replace(view, stale=since, summary=view.summary if snapshot.figures is not None else "Nothing is known.")
    if snapshot.figures is None:
        return replace(view, stale="the first look is under way", summary="Nothing is known yet.")
    return view


def verdict(panels: Sequence[PanelView]) -> Verdict:
    """Say what is wrong: first what is lost, then what will be lost, then what is late. Nothing is wrong only if
    everything is known."""
    found = [(concern, panel.href) for panel in panels for concern in panel.concerns]
    found += [
        (Concern(Tone.UNKNOWN, f"{panel.title}: {panel.stale}", Harm.UNKNOWN), panel.href)
        for panel in panels
        if panel.stale
    ]
    found.sort(key=lambda each: (each[0].harm, -each[0].tone.rank, -each[0].messages))
    counts = {tone: sum(concern.tone is tone for concern, _ in found) for tone in Tone}
    parts = [
        f"{count(counts[Tone.ERROR], 'thing is', 'things are')} wrong" if counts[Tone.ERROR] else "",
        f"{count(counts[Tone.WARNING], 'thing needs', 'things need')} attention" if counts[Tone.WARNING] else "",
        f"{count(counts[Tone.UNKNOWN], 'panel has', 'panels have')} no news" if counts[Tone.UNKNOWN] else "",
    ]
    told = [part for part in parts if part]
    idle = "".join(f"; {panel.idle}" for panel in panels if panel.idle)
    headline = f"{'; '.join(told)}." if told else f"Nothing is wrong{idle}."
    return Verdict(worst(concern.tone for concern, _ in found), headline, tuple(found))


def count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def span(seconds: float) -> str:
    """A length of time in its two largest units."""
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
    """In milliseconds where no calendar has it: a client may give its messages any time."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def rate(per_second: float | None) -> str:
    if per_second is None:
        return "\N{EN DASH}"
    return f"{per_second:,.1f}" if per_second < 100 else f"{per_second:,.0f}"
