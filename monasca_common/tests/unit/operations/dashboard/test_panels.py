# SPDX-License-Identifier: Apache-2.0
"""The content of each panel."""

from dataclasses import replace

from oslotest import base

from monasca_common.audit.reconciliation import AuditVerdict, Reconciliation
from monasca_common.kafka import RetriableError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.dashboard.audit_panel import audit_figures, audit_panel
from monasca_common.operations.dashboard.dead_letter_panel import (
    DeadLetterFigures,
    DeadLetterReason,
    dead_letter_panel,
)
from monasca_common.operations.dashboard.durability_panel import DurabilityFigures, durability_panel
from monasca_common.operations.dashboard.lag_panel import GroupFigures, group_panel, lag_panel
from monasca_common.operations.dashboard.load_panel import LoadGatherer, TopicLoad, load_panel
from monasca_common.operations.dashboard.panel_source import PanelSource, Snapshot
from monasca_common.operations.dashboard.panels import Panels
from monasca_common.operations.dashboard.view import Tone, page_of, verdict
from monasca_common.operations.durability import Finding, Severity
from monasca_common.operations.lag.verdict import LagStatus, LagVerdict

METRICS, METRICS_1, LOG = TopicPartition("metrics", 0), TopicPartition("metrics", 1), TopicPartition("log", 0)
DASH = "\N{EN DASH}"


def lag(status=LagStatus.OK, messages=0, seconds=0.0, deleted=0, headroom=None, *, expires_soon=False):
    return LagVerdict(status, messages, seconds, deleted, headroom, 1.0, 0, headroom, expires_soon)


def group(name, verdict, **facts):
    return GroupFigures(name, verdict, {METRICS: verdict}, **facts)


def texts(view):
    return [[cell.text for cell in row.cells] for row in view.rows]


class HealthTest(base.BaseTestCase):
    def test_the_dashboard_is_ready_once_each_source_has_figures_or_an_error(self):
        def fail(_now):
            raise RetriableError("no broker responds")

        sources = {
            name: PanelSource(name, gather, interval_seconds=1, timeout_seconds=5, now_ms=lambda: 1000)
            for name, gather in {"lag": fail, "load": lambda _now: ()}.items()
        }
        health = Panels(sources, lambda: 1000).health()
        sources["load"].refresh()
        self.assertEqual((False, {"ready": False, "reasons": ["lag: no figures yet"]}), health.ready())
        sources["lag"].refresh()
        self.assertEqual((True, {"ready": True, "reasons": []}), health.ready())
        self.assertEqual((True, {"lag": "no broker responds"}), (health.health()[0], health.health()[1]["failures"]))
        self.assertTrue(health.live()[0])


class AuditPanelTest(base.BaseTestCase):
    """The buckets have a minute, and the time is 00:03:20."""

    NOW_MS = 200_000

    def balance(self, minute, tier="database", expected=1000, lost=0, late=0, duplicates=0, surplus=0, **facts):
        return Reconciliation(
            topic="metrics",
            bucket_ms=minute * 60_000,
            tier=tier,
            application="",
            expected=expected,
            messages=expected - lost - late,
            lost=lost,
            late=late,
            duplicates=duplicates,
            surplus=surplus,
            **{"verdict": AuditVerdict.OK, **facts},
        )

    def panel(self, *balances):
        return audit_panel(Snapshot(audit_figures(balances, self.NOW_MS, 60), 0), self.NOW_MS)

    def cells(self, view):
        """Return the cells of the first four minutes in the first row."""
        return [(cell.text, cell.shade) for cell in view.rows[0].cells[6:10][::-1]]

    def test_a_topic_without_missing_messages_is_ok(self):
        view = self.panel(self.balance(1), self.balance(2))
        self.assertEqual(("1 topic is counted; 0 messages missing.", ()), (view.summary, view.concerns))
        self.assertEqual([("", "none"), ("100", "full"), ("100", "full"), ("", "none")], self.cells(view))
        self.assertEqual("00:03", view.columns[6])

    def test_losses_are_highlighted_and_are_a_concern(self):
        view = self.panel(self.balance(1), self.balance(2, lost=3, late=4, verdict=AuditVerdict.INCOMPLETE))
        self.assertEqual(
            [(Tone.ERROR, "metrics at database: 3 lost and 4 not arrived of 1,000 messages from 00:02 UTC")],
            [(each.tone, each.text) for each in view.concerns],
        )
        self.assertEqual(("\N{MULTIPLICATION X} 99.3", "some"), self.cells(view)[2])
        self.assertIn("993 of 1,000 messages, 3 lost, 4 late", view.rows[0].cells[7].note)

    def test_messages_that_can_still_arrive_are_not_missing(self):
        late = self.balance(2, late=7, verdict=AuditVerdict.OPEN)
        view = self.panel(self.balance(1, lost=2, verdict=AuditVerdict.INCOMPLETE), late)
        self.assertEqual("1 topic is counted; 2 messages missing, 7 can still arrive.", view.summary)
        self.assertEqual("2", view.rows[0].cells[4].text)
        self.assertEqual("1 topic is counted; 0 messages missing, 7 can still arrive.", self.panel(late).summary)

    def test_an_uncounted_topic_is_a_concern(self):
        view = self.panel(self.balance(2, tier="broker", late=1000, verdict=AuditVerdict.UNCOUNTED))
        self.assertEqual(
            [
                (
                    Tone.WARNING,
                    "metrics at broker: the log's messages are not counted, so completeness is unknown from 00:02 UTC",
                )
            ],
            [(each.tone, each.text) for each in view.concerns],
        )
        self.assertEqual(("?", "open"), self.cells(view)[2])

    def test_a_recreated_topic_is_one_concern_without_missing_messages(self):
        tiers = (self.balance(2, tier, lost=5, verdict=AuditVerdict.RECREATED) for tier in ("broker", "database"))
        view = self.panel(*tiers)
        self.assertEqual(
            [(Tone.WARNING, "metrics: the topic was deleted and recreated, so it is unknown which messages arrived")],
            [(each.tone, each.text) for each in view.concerns],
        )
        self.assertEqual("1 topic is counted; 0 messages missing.", view.summary)
        self.assertEqual(("?", "open"), self.cells(view)[2])

    def test_larger_losses_are_highlighted_more(self):
        view = self.panel(
            *(
                self.balance(minute, lost=lost, verdict=AuditVerdict.INCOMPLETE)
                for minute, lost in ((0, 1), (1, 50), (2, 500))
            )
        )
        self.assertEqual(["some", "much", "most", "none"], [shade for _, shade in self.cells(view)])
        self.assertIn("551 lost of 3,000 messages since 00:00", view.concerns[0].text)

    def test_one_missing_message_of_a_million_is_not_rounded_away(self):
        view = self.panel(self.balance(2, expected=1_000_000, lost=1, verdict=AuditVerdict.INCOMPLETE))
        self.assertEqual("\N{MULTIPLICATION X} 99.9", self.cells(view)[2][0])

    def test_messages_within_the_grace_period_are_not_a_concern(self):
        view = self.panel(self.balance(3, late=10, verdict=AuditVerdict.OPEN))
        self.assertEqual((), view.concerns)
        self.assertEqual(("\N{HORIZONTAL ELLIPSIS} 99.0", "open"), self.cells(view)[3])

    def test_duplicates_are_shown(self):
        view = self.panel(self.balance(2, tier="broker", duplicates=2, surplus=1))
        self.assertEqual((("100 +3", "more"), ()), (self.cells(view)[2], view.concerns))

    def test_rows_with_missing_messages_come_first_then_those_with_duplicates(self):
        lacking = self.balance(2, tier="c", lost=1, verdict=AuditVerdict.OPEN)
        rows = self.panel(self.balance(2, tier="a"), self.balance(2, tier="b", duplicates=900), lacking).rows
        names = [row.cells[2].text for row in page_of(rows, 1, "", 10).rows]
        self.assertEqual(["c", "b", "a"], names)

    def test_losses_before_the_shown_buckets_are_a_concern(self):
        early = self.balance(-100, lost=3, verdict=AuditVerdict.INCOMPLETE)
        view = self.panel(early, self.balance(2))
        self.assertEqual(1, len(view.concerns))
        self.assertEqual(Tone.ERROR, view.rows[0].tone)

    def test_buckets_shorter_than_a_minute_have_their_seconds(self):
        view = audit_panel(Snapshot(audit_figures([self.balance(2)], self.NOW_MS, 10), 0), self.NOW_MS)
        self.assertEqual(("00:03:20", "00:03:10"), view.columns[6:8])

    def test_without_audit_reports_there_is_a_remark(self):
        view = self.panel()
        self.assertIn("messages are not counted", view.summary)
        self.assertEqual(Tone.UNKNOWN, view.tone)
        self.assertEqual("Nothing is wrong; completeness is not checked.", verdict([view]).headline)


class LagPanelTest(base.BaseTestCase):
    def panel(self, *groups):
        return lag_panel(Snapshot(groups, 0), 0)

    def test_a_group_that_keeps_up_is_not_a_problem(self):
        view = self.panel(group("persister", lag(), unread=(0, 4, 2), per_second=12.5))
        self.assertEqual(
            ("1 group keeps up, 0 with problems.", (), Tone.GOOD), (view.summary, view.concerns, view.tone)
        )
        self.assertEqual([["OK", "persister", "metrics", "0", DASH, "12.5", DASH, "0", ""]], texts(view))
        self.assertEqual((0.0, 1.0, 0.5), view.rows[0].cells[-1].trend)

    def test_a_group_that_stopped_is_an_error_in_words(self):
        view = self.panel(group("persister", lag(LagStatus.STOP, 12_400, 725)))
        (concern,) = view.concerns
        self.assertEqual(Tone.ERROR, concern.tone)
        self.assertEqual("persister stopped: 12,400 unread, oldest 12 min 5 s", concern.text)
        (concern,) = self.panel(group("persister", lag(LagStatus.WARNING, 78, 600))).concerns
        self.assertEqual("persister does not catch up: 78 unread, oldest 10 min", concern.text)

    def test_deletions_by_retention_are_concerns_before_and_after(self):
        near = self.panel(group("late", lag(messages=7, seconds=60, headroom=600, expires_soon=True)))
        self.assertEqual(Tone.ERROR, near.tone)
        self.assertIn("at the current speed, retention deletes unread messages in 10 min", near.concerns[0].text)
        self.assertEqual(Tone.GOOD, self.panel(group("late", lag(messages=7, seconds=60, headroom=600))).tone)
        self.assertEqual("LOST SOON", texts(near)[0][0])
        gone = self.panel(group("late", lag(messages=7, seconds=60, deleted=3)))
        self.assertEqual("LOST", texts(gone)[0][0])
        self.assertEqual(Tone.ERROR, gone.tone)
        self.assertIn("3 deleted unread", gone.concerns[0].text)

    def test_offsets_beyond_the_end_of_the_log_are_an_error_in_words(self):
        view = self.panel(group("ahead", replace(lag(LagStatus.WARNING), truncated=4)))
        self.assertEqual(Tone.ERROR, view.tone)
        self.assertIn("ahead: offsets 4 beyond the end of the log", view.concerns[0].text)

    def test_a_group_has_a_row_for_each_partition(self):
        other = lag(LagStatus.STALL, 5, 30)
        view = group_panel(GroupFigures("g", other, {METRICS: lag(), TopicPartition("log", 2): other}))
        self.assertEqual(
            [["OK", "metrics/0", "0", DASH, DASH, "0"], ["STALL", "log/2", "5", "30 s", DASH, "0"]], texts(view)
        )


class LoadPanelTest(base.BaseTestCase):
    def test_a_topic_has_its_rate_and_its_slowest_reader(self):
        readers = [group("fast", lag()), group("slow", lag(messages=2, seconds=90))]
        topics = (TopicLoad("metrics", 5000, (10.0, 20.0)), TopicLoad("log", 7))
        view = load_panel(Snapshot(topics, 0), readers, 0)
        self.assertEqual("20.0 messages per second in 2 topics.", view.summary)
        self.assertEqual(
            [["metrics", "20.0", "1 min 30 s", "slow", "5,000", ""], ["log", DASH, DASH, "no consumer", "7", ""]],
            texts(view),
        )

    def test_a_rate_counts_messages_between_two_checks(self):
        admin = Ends({METRICS: 100, TopicPartition("__consumer_offsets", 0): 5})
        gather = LoadGatherer(admin)
        self.assertEqual((TopicLoad("metrics", 100),), gather(1000))
        admin.ends[METRICS] = 150
        self.assertEqual((TopicLoad("metrics", 150, (25.0,)),), gather(3000))
        admin.ends[METRICS] = 0  # the topic was deleted and recreated
        self.assertEqual((TopicLoad("metrics", 0, (25.0, 0.0)),), gather(4000))

    def test_a_partition_without_a_leader_does_not_hide_the_others(self):
        admin = Ends({METRICS: 100, METRICS_1: 7000, LOG: 5})
        gather = LoadGatherer(admin)
        gather(1000)
        admin.offline = {METRICS_1, LOG}
        admin.ends[METRICS] = 110
        self.assertEqual((TopicLoad("metrics", 110, (10.0,)),), gather(2000))
        admin.offline = {LOG}
        self.assertEqual((TopicLoad("metrics", 7110, (10.0, 0.0)),), gather(3000))
        admin.offline = {METRICS, METRICS_1, LOG}
        self.assertRaises(TransportError, gather, 4000)


class Ends:
    """An `Admin` that returns the ends of logs. ``offline``: the partitions without a leader."""

    def __init__(self, ends):
        self.ends = ends
        self.offline = set()

    def leaders(self):
        found = {partition.topic: {} for partition in self.ends}
        for partition in self.ends:
            found[partition.topic][partition.partition] = None if partition in self.offline else 1
        return found

    def end_offsets(self, partitions):
        wanted = set(partitions)
        if wanted & self.offline:
            raise RetriableError("its leader did not report its offset")
        return {partition: self.ends[partition] for partition in wanted}


class DurabilityPanelTest(base.BaseTestCase):
    def finding(self, topic, severity=Severity.ERROR, text="there is one copy"):
        return Finding(topic, severity, "one_copy", (), text)

    def test_the_same_finding_of_many_topics_is_one_problem(self):
        findings = tuple(self.finding(f"topic-{number:03}") for number in range(40))
        view = durability_panel(Snapshot(DurabilityFigures(100, findings), 0), 0)
        self.assertEqual("60 topics are safe, 40 with findings.", view.summary)
        (concern,) = view.concerns
        self.assertEqual("40 topics (topic-000, topic-001, topic-002 …): there is one copy", concern.text)
        self.assertEqual((40, 1), (len(view.rows), len(view.digest)))

    def test_a_warning_is_not_an_error(self):
        view = durability_panel(Snapshot(DurabilityFigures(1, (self.finding("a", Severity.WARNING),)), 0), 0)
        self.assertEqual(Tone.WARNING, view.tone)


class DeadLetterPanelTest(base.BaseTestCase):
    def test_dead_letters_have_their_origin_and_reason(self):
        few = DeadLetterReason("metrics", "persister", "Poison: too long", 1, 0)
        many = DeadLetterReason("metrics", "persister", "Poison: not JSON", 9, 60_000)
        figures = (DeadLetterFigures("metrics.dlq", 10, (few, many)), DeadLetterFigures("log.dlq", 0, ()))
        view = dead_letter_panel(Snapshot(figures, 0), 0)
        self.assertEqual("10 pending dead letters in 2 dead-letter topics.", view.summary)
        self.assertEqual(
            ["10 pending dead letters in metrics.dlq, most often with the error: Poison: not JSON"],
            [each.text for each in view.concerns],
        )
        self.assertEqual(
            ["9", "metrics.dlq", "metrics", "persister", "Poison: not JSON", "1970-01-01 00:01:00 UTC"], texts(view)[1]
        )

    def test_unread_offsets_count_as_possible_dead_letters(self):
        figures = (DeadLetterFigures("metrics.dlq", 1, (), unread=9), DeadLetterFigures("log.dlq", 2, ()))
        view = dead_letter_panel(Snapshot(figures, 0), 0)
        self.assertEqual("up to 12 pending dead letters in 2 dead-letter topics.", view.summary)
        self.assertEqual(
            ["up to 10 pending dead letters in metrics.dlq", "2 pending dead letters in log.dlq"],
            [each.text for each in view.concerns],
        )

    def test_a_topic_without_dead_letters_is_ok(self):
        self.assertEqual(Tone.GOOD, dead_letter_panel(Snapshot((DeadLetterFigures("log.dlq", 0, ()),), 0), 0).tone)
