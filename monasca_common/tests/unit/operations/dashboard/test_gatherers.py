# SPDX-License-Identifier: Apache-2.0
"""The dashboard's figures of dead letters, reconciliations and consumer groups."""

from unittest import mock

import fixtures
from oslotest import base

from monasca_common.audit.reconciliation import AuditTotals, AuditVerdict
from monasca_common.audit.reports import AuditCount, AuditReport
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Record, RetriableError, TopicPartition, dead_letters
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.operations.dashboard import dead_letter_panel
from monasca_common.operations.dashboard.audit_panel import AuditGatherer
from monasca_common.operations.dashboard.dead_letter_panel import DeadLetterGatherer
from monasca_common.operations.dashboard.lag_panel import LagGatherer
from monasca_common.operations.dead_letters import DeadLetterReplay
from monasca_common.operations.lag.history import LagHistory
from monasca_common.operations.lag.verdict import Commit, LagStatus, LagWindow, PartitionState
from monasca_common.operations.log_reading import LogReader
from monasca_common.operations.settings import DLQ_GROUP

LETTERS = TopicPartition("metrics.dlq", 0)


class MemoryAdmin:
    """An `Admin` of an in-memory broker."""

    def __init__(self, broker):
        self._broker = broker

    def partition_counts(self):
        return {topic: len(self._broker.topic(topic).partitions) for topic in self._broker.topics()}

    def group_offsets(self, group):
        return self._broker.committed(group)

    def first_offsets(self, partitions):
        return {each: self._broker.watermarks(each)[0] for each in partitions}

    def end_offsets(self, partitions):
        return {each: self._broker.watermarks(each)[1] for each in partitions}


class GathererTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.producer = self.kafka.producer()
        for topic in ("metrics", "metrics.dlq"):
            self.kafka.broker.create_topic(topic, 1)
        self.gather = DeadLetterGatherer(
            MemoryAdmin(self.kafka.broker), self.kafka.connection(), (), timeout_seconds=60
        )

    def bury(self, count, *, origin="metrics"):
        headers = ((dead_letters.ORIGIN_TOPIC, origin.encode()), (dead_letters.ERROR_CLASS, b"ValueError"))
        records = [Record(b"x", headers=headers)] * count
        self.producer.publish("metrics.dlq", records).raise_for_undelivered()

    def replay(self, **arguments):
        with self.kafka.consumer("metrics.dlq", DLQ_GROUP, partitions=[LETTERS]) as consumer:
            return len(list(DeadLetterReplay(consumer, **arguments).send(self.producer)))

    def figures(self):
        (topic,) = self.gather(0)
        return topic

    def reasons(self):
        return {reason.origin_topic: reason.count for reason in self.figures().reasons}

    def test_replayed_dead_letters_after_a_pending_one_are_not_counted(self):
        self.bury(1, origin="gone")
        self.bury(5)
        self.assertEqual((6, {"gone": 1, "metrics": 5}), (self.figures().pending, self.reasons()))
        self.assertEqual(6, self.replay())
        self.assertEqual((1, {"gone": 1}), (self.figures().pending, self.reasons()))
        self.bury(2)
        self.assertEqual((3, {"gone": 1, "metrics": 2}), (self.figures().pending, self.reasons()))

    def test_reasons_count_all_pending_dead_letters(self):
        self.bury(501)
        self.bury(1, origin="gone")
        self.assertEqual({"gone": 1, "metrics": 501}, self.reasons())

    def test_a_long_origin_is_truncated(self):
        self.bury(1, origin="t" * 100_000)
        self.assertEqual({"t" * 300: 1}, self.reasons())

    def test_a_first_check_after_a_replay_has_the_same_counts(self):
        self.bury(1, origin="gone")
        self.bury(5)
        self.replay()
        self.assertEqual((1, {"gone": 1}), (self.figures().pending, self.reasons()))

    def test_offsets_without_a_message_are_not_dead_letters(self):
        self.bury(2)
        self.kafka.broker.skip_offsets(*LETTERS, 1)
        self.replay()
        self.kafka.broker.skip_offsets(*LETTERS, 1)
        self.assertEqual((0, 0, ()), (self.figures().pending, self.figures().unread, self.figures().reasons))

    def test_dead_letters_of_a_limited_replay_are_not_counted(self):
        self.bury(1)
        self.bury(4, origin="log")
        self.kafka.broker.create_topic("log", 1)
        self.replay(chosen=lambda letter: letter.origin_topic == "log")
        self.replay(limit=1)
        self.assertEqual(1, self.kafka.broker.committed(DLQ_GROUP)[LETTERS])  # notes follow it
        self.assertEqual(0, self.figures().pending)

    def test_only_the_first_dead_letters_of_a_large_topic_are_read(self):
        self.patch(dead_letter_panel, "_MAX_OFFSETS", 4)
        self.bury(1, origin="gone")
        self.bury(6)
        found = self.figures()
        self.assertEqual((4, 3), (found.pending, found.unread))
        self.replay()  # the note is at offset 7
        found = self.figures()
        self.assertEqual((4, 4), (found.pending, found.unread))

    def test_an_unchanged_topic_is_not_read_again(self):
        self.bury(3)
        self.figures()
        with mock.patch.object(LogReader, "messages", side_effect=RetriableError("read again")):
            self.assertEqual(3, self.figures().pending)

    def test_a_check_after_a_failed_one_is_complete(self):
        self.bury(3)
        self.figures()
        self.bury(2)
        with mock.patch.object(LogReader, "messages", side_effect=RetriableError("no broker")):
            self.assertRaises(RetriableError, self.gather, 0)
        self.assertEqual(5, self.figures().pending)

    def test_deletions_and_offset_resets_change_the_counts(self):
        self.bury(4)
        self.replay(limit=3)
        self.assertEqual(1, self.figures().pending)
        with self.kafka.consumer("metrics.dlq", DLQ_GROUP, partitions=[LETTERS]) as consumer:
            consumer.commit({LETTERS: 0})
        self.assertEqual(4, self.figures().pending)
        self.kafka.broker.delete_records(*LETTERS, 3)
        self.assertEqual(1, self.figures().pending)


BUCKET_MS = 60_000
START_MS = 1_700_000_040_000  # a bucket begins


class ListedReports:
    """Reads the reports of a list instead of those of a topic."""

    def __init__(self, reports, settings):
        self._reports = reports
        self._settings = settings

    def since(self, _log, since_ms, _seconds):
        self._totals = AuditTotals(self._settings)
        for each in self._reports:
            if each.sent_ms >= since_ms:
                self._totals.add(each)
        return self._totals

    def new(self, _log, _seconds):
        return self._totals


def counted(log, bucket_ms):
    count = AuditCount("t", bucket_ms, offsets={0: ((0, 10),)}, log=log)
    return AuditReport(f"{log}-{bucket_ms}", "broker", "counter", bucket_ms, 60, (count,))


class AuditGathererTest(base.BaseTestCase):
    def test_a_recreated_topic_is_counted_again_once_its_first_log_has_left_the_window(self):
        second_ms = START_MS + 5 * BUCKET_MS
        reports = [counted("first", START_MS), counted("second", second_ms)]
        settings = AuditSettings(enabled=True, bucket_seconds=60, grace_seconds=60.0, window_seconds=600)
        listed, name = ListedReports(reports, settings), "monasca_common.operations.audit.report_log.ReportLog"
        self.useFixture(fixtures.MonkeyPatch(f"{name}.since", lambda *arguments: listed.since(*arguments)))
        self.useFixture(fixtures.MonkeyPatch(f"{name}._read", lambda *arguments: listed.new(*arguments)))
        gather = AuditGatherer(mock.Mock(), mock.Mock(), settings, timeout_seconds=1.0)

        verdicts = [[tier.verdict for tier in gather(START_MS + minutes * BUCKET_MS).tiers] for minutes in (6, 12, 15)]
        recreated, ok = [AuditVerdict.RECREATED], [AuditVerdict.OK]
        self.assertEqual([recreated, recreated, ok], verdicts)


TP = TopicPartition("metrics", 0)
NOW = 1_000_000_000_000


class GroupsSurvey:
    """``offset``: the offset that the group ``g`` committed ``silent_ms`` ago; the group ``new`` has no offset."""

    offset = 5
    silent_ms = 1000

    def __init__(self):
        self.histories = []

    def groups(self):
        return ["g", "new"]

    def scan(self, groups, now_ms, *, history):
        self.histories.append(history)
        commits = {"g": (Commit(now_ms - self.silent_ms, self.offset, 9),), "new": ()}
        scans = {group: history.scans(group, TP) for group in groups}
        return {
            group: {TP: PartitionState(0, 9, commits[group], NOW - 600_000, scans=scans[group])} for group in groups
        }


class LagGathererTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.survey, self.read = GroupsSurvey(), []

    def gatherer(self, history=None):
        def read():
            self.read.append(history)
            return history

        return LagGatherer(self.survey, LagWindow(), read)

    def test_the_history_in_the_topic_is_read_once_and_continued_by_each_check(self):
        kept = LagHistory(NOW - 9000)
        gather = self.gatherer(kept)
        for number in range(3):
            gather(NOW + 10_000 * number)
        self.assertEqual([kept], self.read)
        self.assertIs(kept, self.survey.histories[0])
        self.assertEqual([NOW, NOW + 10_000], [each.surveyed_ms for each in self.survey.histories[1:]])

    def test_without_a_history_topic_the_first_check_starts_the_history(self):
        gather = self.gatherer()
        first = {group.name: group for group in gather(NOW)}
        self.assertEqual({"g", "new"}, set(first))
        self.assertEqual((LagStatus.OK, 4), (first["g"].lag.status, first["g"].lag.messages))
        self.assertEqual((LagStatus.OK, 0), (first["new"].lag.status, first["new"].lag.messages))

    def test_the_read_rate_of_a_group_is_known_after_two_checks(self):
        gather = self.gatherer()
        self.assertEqual(None, next(iter(gather(NOW))).per_second)
        self.survey.offset = 8
        group = next(iter(gather(NOW + 10_000)))
        self.assertEqual((0.3, (4, 1)), (group.per_second, group.unread))

    def test_a_first_commit_and_a_rewind_of_a_partition_do_not_count_as_reads(self):
        offsets = [{0: 100}, {0: 110, 1: 5_000_000}, {0: 130, 1: 10}]

        def scan(_groups, now_ms, *, history):
            commits = {number: (Commit(now_ms, at, at),) for number, at in offsets.pop(0).items()}
            return {"g": {TopicPartition("t", each): PartitionState(0, 9, found) for each, found in commits.items()}}

        self.survey.scan = scan
        gather = self.gatherer()
        self.assertEqual([None, 1.0, 2.0], [gather(NOW + 10_000 * number)[0].per_second for number in range(3)])
