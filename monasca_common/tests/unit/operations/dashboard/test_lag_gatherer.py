# SPDX-License-Identifier: Apache-2.0
"""The dashboard's figures of consumer groups, from its own checks and from the history before its start."""

from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.dashboard.lag_panel import LagGatherer
from monasca_common.operations.lag.history import LagHistory
from monasca_common.operations.lag.verdict import Commit, LagStatus, LagWindow, PartitionState

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
