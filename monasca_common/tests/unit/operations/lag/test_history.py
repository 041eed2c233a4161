# SPDX-License-Identifier: Apache-2.0
"""The lag history in its topic: written records are read back, and only changes are written."""

import json
from dataclasses import replace

from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.history import (
    LagHistory,
    end_at,
    following,
    history_of,
    kept_scans,
    records,
    to_keep,
)
from monasca_common.operations.lag.verdict import Commit, LagStatus, LagWindow, LogScan, PartitionState

NOW = 1_000_000_000_000
WINDOW = LagWindow(commits=4, seconds=60.0)
TP = TopicPartition("metrics", 0)
OTHER = TopicPartition("metrics", 1)
UNREAD = PartitionState(0, 50, (Commit(NOW - 9000, 20, 30),), NOW - 5000, 3_600_000)
IDLE = PartitionState(0, 50, (Commit(NOW - 9000, 50, 50),))


def pairs(made):
    return [(record.key, record.value) for record in made]


class TestTopic(base.BaseTestCase):
    def test_a_written_history_is_read_back(self):
        after = following({"g": {TP: UNREAD, OTHER: IDLE}, "h": {TP: IDLE}}, NOW, WINDOW)
        self.assertEqual(after, history_of(pairs(records(LagHistory(), after))))

    def test_the_history_is_json_for_other_programs(self):
        after = following({"g": {TP: UNREAD}}, NOW, WINDOW)
        (key, value), (survey, surveyed) = pairs(records(LagHistory(), after))
        self.assertEqual({"group": "g", "topic": "metrics", "partition": 0}, json.loads(key))
        self.assertEqual({"survey": "lag"}, json.loads(survey))
        self.assertEqual({"version": 1, "time_ms": NOW}, json.loads(surveyed))
        self.assertEqual(
            {
                "version": 1,
                "time_ms": NOW,
                "lag": {
                    "status": "OK",
                    "messages": 30,
                    "seconds": 5.0,
                    "deleted": 0,
                    "headroom_seconds": 3595.0,
                    "completeness": 0.25,
                    "truncated": 0,
                    "lost_in_seconds": 3595.0,
                    "expires_soon": False,
                    "hidden": 0,
                },
                "commits": [[NOW - 9000, 20, 30]],
                "looks": [[NOW, 0, 50, 20, True, 20, False]],
            },
            json.loads(value),
        )

    def test_an_unchanged_partition_is_not_written_again(self):
        first = following({"g": {TP: IDLE, OTHER: UNREAD}}, NOW, WINDOW)
        scans = {each: first.groups["g"][each].scans for each in (TP, OTHER)}
        states = {TP: replace(IDLE, scans=scans[TP]), OTHER: replace(UNREAD, scans=scans[OTHER])}
        second = to_keep(first, following({"g": states}, NOW + 1000, WINDOW))
        written = [json.loads(record.key) for record in records(first, second)]
        self.assertEqual([{"group": "g", "topic": "metrics", "partition": 1}, {"survey": "lag"}], written)
        read = history_of([*pairs(records(LagHistory(), first)), *pairs(records(first, second))])
        self.assertEqual([NOW, NOW + 1000], [scan.time_ms for scan in read.scans("g", TP)])

    def test_a_deleted_group_is_removed_from_the_topic(self):
        before = following({"g": {TP: IDLE}, "h": {TP: IDLE}}, NOW, WINDOW)
        after = following({"h": {TP: IDLE}}, NOW, WINDOW)
        made = pairs(records(before, after))
        self.assertIn((b'{"group":"g","topic":"metrics","partition":0}', None), made)
        self.assertEqual(after, history_of([*pairs(records(LagHistory(), before)), *made]))

    def test_records_of_other_versions_are_ignored(self):
        strange = [(None, b"x"), (b"x", b"{}"), (b'{"group":"g","topic":"t","partition":0}', b'{"version":2}')]
        status = b'{"version":1,"time_ms":1,"lag":{"status":"NEW","messages":0,"seconds":0,"deleted":0,'
        status += b'"headroom_seconds":null,"completeness":1}}'
        self.assertEqual(LagHistory(), history_of([*strange, (strange[2][0], status)]))

    def test_records_of_other_programs_are_ignored(self):
        deep = b'{"x":' + b"[" * 5000
        strange = [(deep, b"{}"), (b'{"group":"g","topic":"t","partition":0}', deep), (b'{"group":"\xff"}', b"{}")]
        self.assertEqual(LagHistory(), history_of(strange))

    def test_an_unknown_group_has_no_scans(self):
        self.assertEqual((), LagHistory(NOW).scans("g", TP))


class TestScans(base.BaseTestCase):
    def scans(self, *changes):
        """Return one scan per second. Each change is (first, end, position, is_unread)."""
        return tuple(LogScan(NOW + 1000 * number, *change, read_to=0) for number, change in enumerate(changes))

    def test_only_the_scans_of_a_window_are_kept(self):
        scans = tuple(LogScan(NOW + 1000 * number, 0, number, 0, is_unread=True, read_to=0) for number in range(600))
        kept = kept_scans(scans, WINDOW)
        self.assertEqual([510, 540, 570, 599], [scan.end for scan in kept])

    def test_frequent_scans_are_thinned_out(self):
        kept = ()
        for number in range(600):
            kept = kept_scans((*kept, LogScan(NOW + 1000 * number, 0, number, 0, is_unread=True, read_to=0)), WINDOW)

        self.assertEqual([510, 540, 570, 599], [scan.end for scan in kept])

    def test_the_last_scan_without_unread_messages_stays(self):
        scans = self.scans((0, 5, 5, False), *[(0, 9, 5, True)] * 600)
        self.assertEqual(scans[0], kept_scans(scans, WINDOW)[0])

    def test_moves_of_the_start_of_the_log_are_kept_with_the_scans_before_them(self):
        scans = self.scans(*[(0, 900, 5, True)] * 50, *[(20, 900, 5, True)] * 600)
        self.assertEqual([0, 20], sorted({scan.first for scan in kept_scans(scans, WINDOW)}))
        self.assertEqual([scans[49], scans[50]], list(kept_scans(scans, WINDOW)[:2]))

    def test_the_first_scan_stays_until_the_group_commits(self):
        never = self.scans(*[(0, 10, None, True)] * 600)
        self.assertEqual(never[0], kept_scans(never, WINDOW)[0])
        committed = (*never, LogScan(NOW + 600_000, 0, 10, 10, is_unread=True, read_to=0))
        self.assertNotEqual(never[0], kept_scans(committed, WINDOW)[0])

    def test_an_end_between_two_scans_is_interpolated(self):
        scans = self.scans((0, 100, 0, True), (0, 200, 0, True))
        self.assertEqual([100, 150, 200], [end_at(scans, NOW + ms, WINDOW) for ms in (0, 500, 1000)])
        self.assertEqual([None, None], [end_at(scans, NOW + ms, WINDOW) for ms in (-1, 1001)])

    def test_an_end_between_distant_scans_is_known_only_without_growth(self):
        for end, expected in ((200, None), (100, 100)):
            scans = (
                LogScan(NOW, 0, 100, 0, is_unread=True, read_to=0),
                LogScan(NOW + 60_001, 0, end, 0, is_unread=True, read_to=0),
            )
            self.assertEqual(expected, end_at(scans, NOW + 30_000, WINDOW))


class TestVerdict(base.BaseTestCase):
    def test_the_last_scan_determines_the_verdict(self):
        state = replace(UNREAD, unread_since_ms=NOW - 90_000, commits=(Commit(NOW - 90_000, 20, 30),))
        known = following({"g": {TP: state}}, NOW, WINDOW).groups["g"][TP]
        self.assertEqual((LagStatus.STOP, NOW), (known.lag.status, known.time_ms))

    def test_messages_that_expired_unread_are_reported_until_the_group_has_passed_them(self):
        """All unread messages are deleted, and then new messages arrive."""
        known = following({"g": {TP: replace(UNREAD, first=0, end=50)}}, NOW, WINDOW).of("g", TP)
        found = []
        for number, (first, end, offset, unread) in enumerate(
            [(50, 50, 20, None), (50, 50, 20, None), (50, 90, 20, NOW), (60, 90, 20, NOW), (60, 90, 70, NOW)], 1
        ):
            commits = (Commit(NOW - 9000, offset, offset),)
            state = PartitionState(first, end, commits, unread, 3_600_000, scans=known.scans)
            known = following({"g": {TP: state}}, NOW + 100_000 * number, WINDOW).of("g", TP)
            found.append(known.lag.deleted)
        self.assertEqual([30, 30, 30, 40, 0], found)

    def test_an_idle_log_that_expired_before_the_first_scan_lost_nothing(self):
        scans, found = (), []
        for number in range(4):
            state = PartitionState(101, 101, (Commit(NOW - 9000, 100, 101),), None, 3_600_000, scans=scans)
            known = following({"g": {TP: state}}, NOW + 100_000 * number, WINDOW).of("g", TP)
            scans = known.scans
            found.append(known.lag.deleted)
        self.assertEqual([0, 0, 0], found[1:])

    def test_control_records_stay_read_when_their_scan_is_not_kept(self):
        known = following({"g": {TP: replace(IDLE, commits=(Commit(NOW - 9000, 48, 48),))}}, NOW, WINDOW).of("g", TP)
        for number in range(1, 40):
            state = PartitionState(0, 60, (Commit(NOW - 9000, 48, 48),), NOW, scans=known.scans)
            known = following({"g": {TP: state}}, NOW + 20_000 * number, WINDOW).of("g", TP)
        expired = PartitionState(50, 60, state.commits, NOW, scans=known.scans[-1:])
        self.assertEqual(0, following({"g": {TP: expired}}, NOW + 900_000, WINDOW).of("g", TP).lag.deleted)

    def test_an_added_partition_is_judged_by_messages_after_its_first_scan(self):
        """The group has commits in the other partition, and no member reads the new partition."""
        added, scans = PartitionState(0, 5, (), NOW - 1000), ()
        found = []
        for seconds, end, unread in ((0, 5, NOW - 1000), (30, 9, NOW + 10_000), (80, 12, NOW + 10_000)):
            states = {TP: IDLE, OTHER: replace(added, end=end, unread_since_ms=unread, scans=scans)}
            known = following({"g": states}, NOW + 1000 * seconds, WINDOW).of("g", OTHER)
            scans = known.scans
            found.append((known.lag.status, known.lag.messages))
        self.assertEqual([(LagStatus.OK, 0), (LagStatus.OK, 4), (LagStatus.STOP, 7)], found)

    def test_a_group_without_commits_is_judged_by_messages_after_its_first_scan(self):
        new = replace(UNREAD, commits=(), unread_since_ms=NOW - 90_000)
        first = following({"g": {TP: new}}, NOW, WINDOW)
        known = first.of("g", TP)
        self.assertEqual((LagStatus.OK, 0, 0.0), (known.lag.status, known.lag.messages, known.lag.completeness))
        later = replace(new, end=60, unread_since_ms=NOW + 1000, scans=known.scans)
        found = following({"g": {TP: later}}, NOW + 70_000, WINDOW).of("g", TP).lag
        self.assertEqual((LagStatus.STOP, 10), (found.status, found.messages))
