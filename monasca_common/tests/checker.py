# SPDX-License-Identifier: Apache-2.0
"""Find lost and duplicated messages by comparing the outcome reported to each sender with the stored rows."""

import contextlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum


class LostOrDuplicated(AssertionError):
    """Messages were lost or duplicated. A test run recognizes this class by name, and never counts it as flaky."""


@contextlib.contextmanager
def each_once() -> Iterator[None]:
    """Raise `LostOrDuplicated` if a check in the block, or in the decorated function, fails.

    Keep waits out of the block: a time-out does not show that a message is lost.
    """
    try:
        yield
    except AssertionError as error:
        raise LostOrDuplicated(str(error)) from error


class ReportedOutcome(Enum):
    """The outcome that the sender received for a message."""

    ACKED = "acked"  # stored in the log
    FAILED = "failed"  # definitely not stored
    UNKNOWN = "unknown"  # possibly stored


@dataclass(frozen=True)
class Verdict:
    """The faulty messages by kind.

    ``lost``: acknowledged messages without a row or a dead letter. ``duplicate``: messages with several rows, or with a
    row and a dead letter. ``phantom``: rows of unsent messages, or of messages that were reported as failed. ``open``:
    messages of unknown outcome without a row or a dead letter, which is not a fault.
    """

    lost: frozenset[Hashable]
    duplicate: frozenset[Hashable]
    phantom: frozenset[Hashable]
    stored: int
    dead: int
    open: frozenset[Hashable]

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicate or self.phantom)

    def raise_unless_clean(self) -> None:
        if not self.clean:
            raise LostOrDuplicated(str(self))

    def __str__(self) -> str:
        wrong = {name: getattr(self, name) for name in ("lost", "duplicate", "phantom")}
        samples = ", ".join(f"{len(each)} {name} {sorted(map(str, each))[:5]}" for name, each in wrong.items() if each)
        return f"{self.stored} stored, {self.dead} dead letters, {len(self.open)} open: {samples or 'all well'}"


def check(
    outcomes: Mapping[Hashable, ReportedOutcome], rows: Iterable[Hashable], dead: Iterable[Hashable] = ()
) -> Verdict:
    """Compare outcomes with rows.

    ``outcomes``: the reported outcome by message id. ``rows``: the message ids of all rows, with repeats. ``dead``:
    the ids of dead letters; repeats are ignored, because a reader handles each id once.
    """
    counts, letters = Counter(rows), set(dead)
    present = counts.keys() | letters
    return Verdict(
        lost=frozenset(
            each for each, reported in outcomes.items() if reported is ReportedOutcome.ACKED and each not in present
        ),
        duplicate=frozenset(each for each in counts if counts[each] > 1 or each in letters),
        phantom=frozenset(
            each for each in present if outcomes.get(each, ReportedOutcome.FAILED) is ReportedOutcome.FAILED
        ),
        stored=len(counts),
        dead=len(letters),
        open=frozenset(
            each for each, reported in outcomes.items() if reported is ReportedOutcome.UNKNOWN and each not in present
        ),
    )
