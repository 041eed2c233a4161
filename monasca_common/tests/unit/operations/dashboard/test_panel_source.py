# SPDX-License-Identifier: Apache-2.0
import threading

from oslotest import base

from monasca_common.kafka import RetriableError
from monasca_common.operations.dashboard.panel_source import PanelSource

SECONDS = 30.0


class PanelSourceTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now_ms = 1000
        self.set_ms = 0  # by which the clock was set
        self.answers = []

    def source(self, gather=None):
        gather = gather or (lambda _now: self.answers.pop(0)())
        clocks = {"now_ms": lambda: self.now_ms + self.set_ms, "now": lambda: self.now_ms / 1000}
        return PanelSource("lag", gather, interval_seconds=0.01, timeout_seconds=5, **clocks)

    def fail_with(self, error):
        def fail():
            raise error

        self.answers.append(fail)

    def test_figures_are_kept_with_their_time(self):
        self.answers.append(lambda: "figures")
        source = self.source()
        source.refresh()
        snapshot = source.snapshot()
        self.assertEqual(("figures", 1000, ""), (snapshot.figures, snapshot.gathered_ms, snapshot.error))

    def test_a_failure_keeps_the_figures_and_reports_its_start(self):
        self.answers.append(lambda: "figures")
        self.fail_with(RetriableError("no broker responds"))
        self.fail_with(RetriableError("still none"))
        source = self.source()
        for self.now_ms in (1000, 2000, 3000):
            source.refresh()
        snapshot = source.snapshot()
        self.assertEqual(("figures", 1000), (snapshot.figures, snapshot.gathered_ms))
        self.assertEqual(("still none", 2000), (snapshot.error, snapshot.failing_since_ms))

    def test_a_source_is_overdue_during_a_call_and_after_a_missed_one(self):
        def slow(_now):
            self.now_ms += 7000
            overdue.append(source.seconds_overdue)

        overdue = []
        source = self.source(slow)
        source.refresh()
        self.assertEqual([7.0], overdue)
        self.now_ms += 10
        self.assertEqual(0.0, source.seconds_overdue)
        self.now_ms += 2000
        self.assertEqual(2.0, source.seconds_overdue)

    def test_a_source_is_not_overdue_after_the_clock_was_set(self):
        def during(now_ms):
            self.set_ms += 3_600_000
            return source.snapshot().error, source.seconds_overdue

        source = self.source(during)
        source.refresh()
        self.set_ms += 3_600_000
        self.assertEqual(("", 0.0), source.snapshot().figures)
        self.assertEqual(0.0, source.seconds_overdue)

    def test_a_success_ends_a_failure(self):
        self.fail_with(ValueError("a defect"))
        self.answers.append(lambda: "figures")
        source = self.source()
        source.refresh()
        self.assertEqual("ValueError: a defect", source.snapshot().error)
        source.refresh()
        self.assertEqual(("", None), (source.snapshot().error, source.snapshot().failing_since_ms))

    def test_a_hanging_source_affects_only_its_panel(self):
        began, release = threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def hang(_now):
            began.set()
            release.wait(SECONDS)

        stuck, other = self.source(hang), self.source(lambda _now: "figures")
        for source in (stuck, other):
            source.start()
            self.addCleanup(source.stop)
        self.assertTrue(began.wait(SECONDS))
        self.now_ms += 4000
        self.assertEqual("", stuck.snapshot().error)
        self.now_ms += 4000
        snapshot = stuck.snapshot()
        self.assertEqual(("no response for 8 s", 1000), (snapshot.error, snapshot.failing_since_ms))
        self.assertEqual("", other.snapshot().error)
