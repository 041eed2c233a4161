# SPDX-License-Identifier: Apache-2.0
"""The reconciliation of the messages of each topic, bucket and tier, whatever the order of the reports."""

import itertools
import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base
from prometheus_client import generate_latest

from monasca_common.audit import reports
from monasca_common.audit.reconciliation import AuditTotals, AuditVerdict
from monasca_common.audit.reports import AuditCount, AuditReport, HandledRange
from monasca_common.audit.runs import runs_of
from monasca_common.audit.settings import AuditSettings
from monasca_common.operations.audit.service import AuditMetrics
from monasca_common.tests.unit.audit.audit_case import reconciliations

SETTINGS = AuditSettings(bucket_seconds=60, grace_seconds=60)
BUCKET, NEXT, AFTER = 600_000, 660_000, 720_000
LATER = 10_000_000  # every grace period is over
LOG, READER, COPY = ("broker", ""), ("database", "1_metrics"), ("mirror", "other")

_ids = itertools.count()


def report(tier, *counts, handled=(), application="1_metrics", sent_ms=BUCKET, since_ms=None, **changes):
    facts = {"id": f"r{next(_ids)}", "bucket_seconds": 60}
    return AuditReport(
        tier=tier,
        application=application,
        sent_ms=sent_ms,
        counts=counts,
        handled=tuple(handled),
        since_ms=since_ms,
        **(facts | changes),
    )


def sent(messages, bucket=BUCKET, **changes):
    return report("producer", AuditCount("t", bucket, messages), application="agent", **changes)


def logged(offsets, bucket=BUCKET, tier="broker", repeated=(), application="other", **changes):
    duplicates = {0: runs_of(repeated)} if repeated else {}
    count = AuditCount("t", bucket, offsets={0: runs_of(offsets)}, duplicates=duplicates)
    return report(tier, count, application=application, **changes)


def handled(first, following, partition=0, position=None, **changes):
    return report("database", handled=[HandledRange("t", partition, first, following, position=position)], **changes)


def reconciled(*all_reports, now_ms=LATER):
    """Return {(tier, application): reconciliation} of the first bucket."""
    found = reconciliations(all_reports, now_ms, SETTINGS)
    return {(each.tier, each.application): each for each in found if each.bucket_ms == BUCKET}


def figures(each):
    return each.expected, each.messages, each.lost, each.late


class ReconciliationTest(base.BaseTestCase):
    def test_messages_that_arrived_at_all_tiers_are_complete(self):
        found = reconciled(sent(100), logged(range(100)), handled(0, 100))

        self.assertEqual({(100, 100, 0, 0)}, set(map(figures, found.values())))
        self.assertEqual({AuditVerdict.OK}, {each.verdict for each in found.values()})
        self.assertEqual(3, len(found))

    def test_messages_lost_by_the_log_are_missing_there_and_not_at_its_readers(self):
        found = reconciled(sent(100), logged(range(97)), logged([97], NEXT), handled(0, 98))

        self.assertEqual((100, 97, 3, 0), figures(found[LOG]))
        self.assertEqual((97, 97, 0, 0), figures(found[READER]))
        self.assertEqual(0.97, found[LOG].completeness)
        self.assertIs(AuditVerdict.INCOMPLETE, found[LOG].verdict)

    def test_messages_that_a_reader_passed_are_lost_and_later_ones_are_late(self):
        found = reconciled(logged(range(100)), handled(0, 40), handled(45, 90))

        self.assertEqual((100, 85, 5, 10), figures(found[READER]))

    def test_missing_messages_are_in_the_bucket_of_their_event_time(self):
        all_reports = [logged(range(0, 100, 2)), logged(range(1, 100, 2), NEXT), handled(0, 11), handled(12, 100)]
        found = {
            each.bucket_ms: each for each in reconciliations(all_reports, LATER, SETTINGS) if each.tier == "database"
        }

        self.assertEqual((50, 50, 0, 0), figures(found[BUCKET]))
        self.assertEqual((50, 49, 1, 0), figures(found[NEXT]))

    def test_no_duplicate_hides_a_message_that_a_reader_lost(self):
        found = reconciled(logged(range(100), repeated=range(90, 100)), handled(0, 50), handled(60, 100))

        self.assertEqual(10, found[READER].lost)

    def test_messages_of_a_repeated_batch_can_count_in_the_bucket_of_its_last_message(self):
        earlier, before = BUCKET - 60_000, BUCKET - 120_000
        for own, surplus, lost in ((earlier, 3, 0), (earlier, 2, 1), (before, 3, 3)):
            log = [logged(range(100, 110 + surplus), own), logged(range(7)), logged([200], NEXT)]
            found = reconciled(sent(10, own), sent(10), *log)
            self.assertEqual((7 + lost, 7, lost, 0), figures(found[LOG]))

    def test_duplicates_are_not_a_surplus(self):
        found = reconciled(sent(100), logged(range(107), repeated=[30, 31, 32, 33]))

        self.assertEqual((4, 3, 0), (found[LOG].duplicates, found[LOG].surplus, found[LOG].lost))
        self.assertIs(AuditVerdict.OK, found[LOG].verdict)

    def test_an_id_that_its_sender_uses_twice_is_acknowledged_twice_and_not_lost(self):
        found = reconciled(sent(2), logged(range(2), repeated=[1]))

        self.assertEqual((0, 1), (found[LOG].lost, found[LOG].duplicates))

    def test_a_copy_is_reconciled_by_ids(self):
        copy = logged(range(1000, 1105), tier="mirror", repeated=range(1100, 1105))
        found = reconciled(logged(range(106), repeated=[5]), copy, logged([2000], NEXT, tier="mirror"))

        self.assertEqual((105, 105, 5, 0), self.of_copy(found))
        self.assertEqual(5, found[COPY].lost)

    def of_copy(self, found):
        each = found[COPY]
        return each.expected, each.messages, each.duplicates, each.late

    def test_missing_messages_are_open_until_the_grace_period_is_over(self):
        lossy = [sent(10), logged(range(9))]

        self.assertIs(AuditVerdict.OPEN, reconciled(*lossy, now_ms=BUCKET + 119_999)[LOG].verdict)
        self.assertIs(AuditVerdict.INCOMPLETE, reconciled(*lossy, now_ms=BUCKET + 120_000)[LOG].verdict)

    def test_late_data_makes_its_bucket_complete(self):
        early = [sent(10), logged(range(9)), handled(0, 9)]
        found = reconciled(*early, logged([9], sent_ms=AFTER), handled(9, 10, sent_ms=AFTER))

        self.assertEqual({(10, 10, 0, 0)}, set(map(figures, found.values())))

    def test_a_repeated_report_counts_once(self):
        once = sent(10)

        self.assertEqual((10, 10, 0, 0), figures(reconciled(once, once, logged(range(10)))[LOG]))

    def test_messages_handled_again_after_a_crash_are_not_duplicates(self):
        found = reconciled(logged(range(100)), handled(0, 60), handled(40, 100))

        self.assertEqual((100, 100, 0, 0), figures(found[READER]))

    def test_a_readers_position_accounts_for_messages_stored_before_it_was_killed(self):
        found = reconciled(logged(range(100)), handled(0, 60), handled(80, 100, position=80))
        self.assertEqual((100, 100, 0, 0), figures(found[READER]))

        found = reconciled(logged(range(100)), handled(0, 60), handled(80, 100))
        self.assertEqual(20, found[READER].lost)

    def test_messages_between_a_readers_position_and_its_start_are_lost(self):
        """Retention deleted the messages, or an operator moved the offset."""
        found = reconciled(logged(range(100)), handled(0, 40), handled(80, 100, position=60))

        self.assertEqual((100, 80, 20, 0), figures(found[READER]))

    def test_messages_between_two_positions_of_a_reader_were_stored(self):
        """The first reader was killed before it reported anything except its position."""
        begun, restarted = handled(10, 10, position=10), handled(60, 60, position=60)
        for rest, late in (((), 40), ((handled(60, 100),), 0)):
            found = reconciled(logged(range(100)), begun, restarted, *rest)
            self.assertEqual((90, 90 - late, 0, late), figures(found[READER]))

    def test_messages_after_the_only_reported_position_of_a_reader_are_missing(self):
        found = reconciled(logged(range(100)), handled(30, 30, position=30), now_ms=LATER)

        self.assertEqual((70, 0, 0, 70), figures(found[READER]))

    def test_messages_between_the_position_and_the_start_of_a_reader_are_missing(self):
        found = reconciled(logged(range(100)), handled(40, 100, position=30))

        self.assertEqual((70, 60, 10, 0), figures(found[READER]))

    def test_messages_before_the_start_of_a_reader_are_not_expected(self):
        found = reconciled(logged(range(100)), handled(70, 100))

        self.assertEqual((30, 30, 0, 0), figures(found[READER]))

    def test_a_partition_that_a_reader_never_reports_is_late_from_the_bucket_after_its_start(self):
        two = AuditCount("t", BUCKET, offsets={0: ((0, 10),), 1: ((0, 10),)})
        self.assertEqual(
            (20, 10, 0, 10), figures(reconciled(report("broker", two), handled(0, 10, sent_ms=BUCKET))[READER])
        )
        self.assertEqual(
            (10, 10, 0, 0), figures(reconciled(report("broker", two), handled(0, 10, sent_ms=NEXT))[READER])
        )

    def test_all_messages_of_an_expected_reader_without_reports_are_missing(self):
        expecting = replace(SETTINGS, expected_readers=("t/database/1_metrics", "u/spark/s"))
        silent = reconciliations([sent(10), logged(range(10))], LATER, expecting)
        self.assertEqual(
            [("producer", 0), ("broker", 0), ("database", 10)], [(each.tier, each.late) for each in silent]
        )
        self.assertIs(AuditVerdict.INCOMPLETE, silent[-1].verdict)

        found = reconciliations([sent(10), logged(range(10)), handled(4, 10)], LATER, expecting)
        self.assertEqual((6, 6, 0, 0), figures(found[-1]))

    def test_messages_before_the_start_of_a_counter_are_not_expected(self):
        found = reconciled(sent(100), sent(50, NEXT), logged(range(3), since_ms=NEXT), logged(range(50), NEXT))

        self.assertEqual([("producer", "agent")], list(found))

    def test_messages_after_the_last_report_of_a_counter_are_late_not_lost(self):
        found = reconciled(logged([0], BUCKET - 60_000), sent(10))

        self.assertEqual((10, 0, 0, 10), figures(found[LOG]))

    def test_a_future_timestamp_does_not_turn_late_messages_into_lost_ones(self):
        future = logged([100], 100 * LATER)

        self.assertEqual((10, 0, 0, 10), figures(reconciled(sent(10), future)[LOG]))
        self.assertEqual((10, 0, 10, 0), figures(reconciled(sent(10), future, logged([101], NEXT))[LOG]))

    def test_messages_of_an_uncounted_topic_are_not_known_to_have_arrived(self):
        uncounted = [sent(10), handled(0, 5)]
        self.assertEqual((10, 0, 0, 10), figures(reconciled(*uncounted)[LOG]))
        self.assertIs(AuditVerdict.UNCOUNTED, reconciled(*uncounted)[LOG].verdict)
        self.assertIs(AuditVerdict.OPEN, reconciled(*uncounted, now_ms=BUCKET)[LOG].verdict)

    def test_a_recreated_topic_is_neither_complete_nor_missing(self):
        logs = [self.counted(range(100), "first"), self.counted(range(50), "second")]
        found = reconciled(sent(150), *logs, handled(0, 100))

        self.assertEqual({AuditVerdict.RECREATED}, {each.verdict for each in found.values()})
        self.assertFalse(AuditVerdict.RECREATED.is_final)
        metrics = AuditMetrics()
        metrics.reconciled(found.values(), 0)
        self.assertNotIn('topic="', generate_latest(metrics.registry).decode())

    def counted(self, offsets, log, bucket=BUCKET):
        count = AuditCount("t", bucket, offsets={0: runs_of(offsets)}, log=log)
        return report("broker", count, sent_ms=bucket)

    def test_each_application_of_a_tier_is_reconciled_separately(self):
        other = handled(0, 90, application="2_metrics")
        found = reconciled(logged(range(100)), handled(0, 100), other)

        self.assertEqual((100, 90, 0, 10), figures(found["database", "2_metrics"]))
        self.assertEqual((100, 100, 0, 0), figures(found[READER]))

    def test_sources_of_all_applications_are_expected_together(self):
        api = report("api", AuditCount("t", BUCKET, 5), application="api")

        self.assertEqual((12, 11, 0, 1), figures(reconciled(sent(3), sent(4), api, logged(range(11)))[LOG]))

    def test_reports_with_another_bucket_length_are_excluded_and_counted(self):
        totals = AuditTotals(SETTINGS)
        totals.add(sent(5, bucket_seconds=600))

        self.assertEqual(([], 1), (totals.reconciliations(LATER), totals.foreign))

    def test_messages_with_future_timestamps_are_excluded_and_counted(self):
        totals = AuditTotals(SETTINGS)
        for number in range(3):
            totals.add(logged([number], bucket=BUCKET * 10_000 * (number + 1)))
        totals.add(sent(10))
        totals.add(logged(range(10, 19)))
        late = [(each.tier, each.lost, each.late) for each in totals.reconciliations(BUCKET)]

        self.assertEqual((3, [("producer", 0, 0), ("broker", 0, 1)]), (totals.early, late))

    def test_buckets_before_a_time_are_not_reconciled(self):
        totals = AuditTotals(SETTINGS)
        for each in (sent(5), logged(range(5)), handled(0, 5), logged([5], NEXT)):
            totals.add(each)

        self.assertEqual({NEXT}, {each.bucket_ms for each in totals.reconciliations(LATER, NEXT)})

    def test_messages_of_a_gap_that_began_before_the_oldest_bucket_are_missing(self):
        for gap in ([handled(0, 40)], [handled(0, 0, position=40)]):
            totals = AuditTotals(SETTINGS)
            for each in (logged(range(50)), logged(range(50, 100), NEXT), *gap, handled(60, 100)):
                totals.add(each)
            found = [figures(each) for each in totals.reconciliations(LATER, NEXT) if each.tier == "database"]
            self.assertEqual([(50, 40, 10, 0)], found)

    def test_ids_are_kept_only_of_reports_with_numbers(self):
        totals = AuditTotals(SETTINGS)
        ahead = logged([200], BUCKET + reports.AHEAD_MS + 60_000)
        all_reports = [sent(10), logged(range(10)), handled(0, 10, position=0), report("x", bucket_seconds=1), ahead]
        for each in all_reports * 2:
            totals.add(each)

        self.assertEqual({all_reports[0].id, all_reports[3].id, ahead.id}, totals._seen)
        self.assertEqual((1, 1), (totals.foreign, totals.early))
        self.assertEqual([(10, 10, 0, 0)] * 3, [figures(each) for each in totals.reconciliations(LATER)])

    def test_a_report_is_decoded_as_it_was_encoded(self):
        written = report(
            "broker", AuditCount("t", BUCKET, 2, offsets={3: ((1, 3),)}), handled=[HandledRange("t", 0, 1, 2)]
        )

        self.assertEqual(written, reports.decode(reports.encode(written)))
        self.assertIsNone(reports.decode(b"{}"))
        self.assertIsNone(reports.decode(None))
        for value in (b'{"x":' + b"[" * 5000, b'{"id":"\xff"}'):
            self.assertIsNone(reports.decode(value))
        for messages in (-1, 10**400):
            self.assertIsNone(
                reports.decode(reports.encode(written).replace(b'"messages":2', b'"messages":%d' % messages))
            )
        self.assertIsNone(reports.decode(reports.encode(report("broker", version=2))))


class CleanRunsTest(base.BaseTestCase):
    """A clean run is reported as clean, however its reports are divided, repeated and reordered."""

    @given(st.randoms(use_true_random=False), st.integers(1, 60), st.integers(0, 3))
    def test_a_complete_topic_has_no_missing_messages(self, chance, messages, again):
        found = reconciliations(self.run_of(chance, messages, again), LATER, SETTINGS)

        self.assertEqual([], [each for each in found if each.verdict is not AuditVerdict.OK])

    @given(st.randoms(use_true_random=False), st.integers(2, 60), st.data())
    def test_exactly_the_messages_that_a_reader_passed_are_missing(self, chance, messages, data):
        lost = data.draw(st.sets(st.integers(1, messages - 1), min_size=1))
        all_reports = self.run_of(chance, messages, 0, lost=lost)
        found = reconciliations(all_reports, LATER, SETTINGS)

        self.assertEqual(len(lost), sum(each.lost + each.late for each in found))
        self.assertEqual({"database"}, {each.tier for each in found if each.lost + each.late})

    def run_of(self, chance: random.Random, messages, again, lost=()):
        """Generate a run of one partition. Each offset is in a random bucket; ranges are handled, some of them
        repeatedly."""
        buckets = [chance.choice((BUCKET, NEXT)) for _ in range(messages)]
        found = [handled(0, 1)]
        for bucket in (BUCKET, NEXT):
            own = [offset for offset, each in enumerate(buckets) if each == bucket]
            found += [sent(1, bucket) for _ in own]
            found += [logged(own[:half], bucket) for half in (len(own) // 2, len(own)) if own[:half]]
        for offset in range(1, messages):
            if offset not in lost:
                found.append(handled(offset, offset + 1))
        for _ in range(again):
            first = chance.randrange(messages)
            found.append(handled(first, chance.randint(first + 1, messages)))
        found += chance.choices(found, k=3)
        chance.shuffle(found)
        return found
