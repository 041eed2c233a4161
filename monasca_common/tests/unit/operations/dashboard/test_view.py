# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from oslotest import base

from monasca_common.operations.dashboard.panel_source import Snapshot
from monasca_common.operations.dashboard.view import (
    Cell,
    Concern,
    ConcernKind,
    PanelView,
    TableRow,
    Tone,
    clock,
    page_of,
    panel_of,
    span,
    verdict,
)

EMPTY = PanelView("lag", "Consumers", "", "")


def row(name, tone=Tone.GOOD, weight=0.0):
    return TableRow(name, tone, weight, (Cell(name),))


def names(page):
    return [each.name for each in page.rows]


class ClockTest(base.BaseTestCase):
    def test_a_time_outside_the_calendar_is_shown_as_a_number(self):
        self.assertEqual("1970-01-01 00:00:00 UTC", clock(0))
        for time_ms in (2**62, -(2**62), 2**63 - 1):
            self.assertEqual(f"{time_ms} ms", clock(time_ms))


class VerdictTest(base.BaseTestCase):
    def test_losses_come_first_then_imminent_losses_then_delays(self):
        late = [Concern(Tone.ERROR, f"late {number}", ConcernKind.LATE, number) for number in range(78)]
        lost = [
            Concern(Tone.WARNING, "few lost", ConcernKind.LOST, 2),
            Concern(Tone.ERROR, "lost", ConcernKind.LOST, 108),
        ]
        soon = [Concern(Tone.ERROR, "lost soon", ConcernKind.AT_RISK, 5)]
        line = verdict([replace(EMPTY, concerns=(*late, *soon, *lost))])
        shown = [concern.text for concern, _ in line.concerns]
        self.assertEqual(["lost", "few lost", "lost soon", "late 77"], shown[:4])

    def test_a_healthy_cluster_has_the_headline_nothing_is_wrong(self):
        line = verdict([replace(EMPTY, summary="4 groups keep up")])
        self.assertEqual((Tone.GOOD, "Nothing is wrong.", ()), (line.tone, line.headline, line.concerns))

    def test_the_worst_concern_is_first_and_links_to_its_panel(self):
        dead_letters = PanelView(
            "dead-letters",
            "Dead letters",
            "",
            "",
            concerns=(Concern(Tone.WARNING, "3 pending", ConcernKind.NOT_HANDLED),),
        )
        lag = replace(EMPTY, concerns=(Concern(Tone.ERROR, "it stopped"),))
        line = verdict([dead_letters, lag])
        self.assertEqual("Messages late, not handled: 1 error, 1 warning.", line.headline)
        self.assertEqual(
            [("it stopped", "/lag"), ("3 pending", "/dead-letters")],
            [(each.text, href) for each, href in line.concerns],
        )

    def test_a_panel_without_current_data_is_not_reported_as_healthy(self):
        line = verdict([EMPTY, replace(EMPTY, stale="not reachable since 12:00")])
        self.assertEqual((Tone.UNKNOWN, "1 panel without current data."), (line.tone, line.headline))
        self.assertIn("not reachable since 12:00", line.concerns[0][0].text)


class PageTest(base.BaseTestCase):
    def test_the_worst_rows_come_first_then_the_heaviest(self):
        rows = [row("a"), row("b", weight=5), row("c", Tone.WARNING), row("d", Tone.ERROR)]
        self.assertEqual(["d", "c", "b", "a"], names(page_of(rows, 1, "", 10)))

    def test_a_page_shows_part_of_the_rows_that_match_the_filter(self):
        rows = [row(f"topic-{number:04}") for number in range(1000)]
        page = page_of(rows, 3, "TOPIC-00", 40)
        self.assertEqual((3, 3, 100), (page.number, page.count, page.found))
        self.assertEqual("topic-0080", page.rows[0].name)
        self.assertEqual(20, len(page.rows))

    def test_a_page_beyond_the_last_is_the_last(self):
        self.assertEqual(["b"], names(page_of([row("a"), row("b")], 99, "", 1)))
        self.assertEqual((1, 1), (page_of([], 7, "", 10).number, page_of([], 7, "", 10).count))


class PanelTest(base.BaseTestCase):
    def panel(self, snapshot):
        return panel_of(snapshot, EMPTY, lambda empty: replace(empty, summary="shown"), 60_000)

    def test_figures_are_shown(self):
        self.assertEqual(("shown", "", Tone.GOOD), self.facts(Snapshot(1, 5)))

    def test_before_the_first_check_there_is_a_remark(self):
        summary, stale, tone = self.facts(Snapshot())
        self.assertEqual(("No data yet.", Tone.UNKNOWN), (summary, tone))
        self.assertIn("first check", stale)

    def test_old_figures_stay_with_the_error_of_the_last_check(self):
        summary, stale, tone = self.facts(Snapshot(1, 5, "no broker responds", 30_000))
        self.assertEqual(("shown", Tone.UNKNOWN), (summary, tone))
        self.assertEqual("not reachable since 1970-01-01 00:00:30 UTC: no broker responds", stale)

    def facts(self, snapshot):
        view = self.panel(snapshot)
        return view.summary, view.stale, view.tone


class SpanTest(base.BaseTestCase):
    def test_a_duration_has_its_two_largest_units(self):
        reported = [span(each) for each in (0.25, 42, 60, 61, 3600, 7260, 90_000, 10 * 86_400)]
        self.assertEqual(["0.2 s", "42 s", "1 min", "1 min 1 s", "1 h", "2 h 1 min", "1 d 1 h", "10 d"], reported)
