# SPDX-License-Identifier: Apache-2.0
"""The dashboard's figures of consumer groups, from its own checks and from the history before its start."""

from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.dashboard.lag_panel import LagGatherer, group_panel, lag_panel
from monasca_common.operations.dashboard.panel_source import Snapshot
from monasca_common.operations.group_positions import DatabasePositions, no_database
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
        self.stored, self.positions_read = no_database(), 0

    def gatherer(self, history=None):
        def read():
            self.read.append(history)
            return history

        def read_positions():
            self.positions_read += 1
            return self.stored

        return LagGatherer(self.survey, LagWindow(), read, read_positions)

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

    def test_positions_are_read_and_shown_only_for_a_group_with_a_problem(self):
        self.stored = DatabasePositions({"g": {TP: 7}})
        gather = self.gatherer()
        (group, _) = gather(NOW)
        self.assertEqual(((), 0), (group.position_remarks, self.positions_read))
        self.survey.silent_ms = 120_000
        (group, new) = gather(NOW + 10_000)
        self.assertEqual("metrics/0: 7 in the database, 5 in Kafka", group.position_remarks[1])
        self.assertEqual((), new.position_remarks)
        self.assertIn(group.position_remarks[0], group_panel(group).summary)
        view = lag_panel(Snapshot((group,), NOW, ""), NOW)
        self.assertIn("The service resumes from the database, which", view.concerns[0].text)

    def test_an_unavailable_database_is_reported(self):
        self.stored = DatabasePositions(error="no response")
        self.survey.silent_ms = 120_000
        (group, _) = self.gatherer()(NOW)
        self.assertIn(
            "it is unknown if services resume from other offsets in a database: no response",
            group.position_remarks[0],
        )

    def test_the_read_rate_of_a_group_is_known_after_two_checks(self):
        gather = self.gatherer()
        self.assertEqual(None, next(iter(gather(NOW))).per_second)
        self.survey.offset = 8
        group = next(iter(gather(NOW + 10_000)))
        self.assertEqual((0.3, (4, 1)), (group.per_second, group.unread))
