# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.group_positions import DatabasePositions, no_database, position_remarks
from monasca_common.operations.lag.history import PartitionHistory
from monasca_common.operations.lag.verdict import Commit, LagStatus, LagVerdict

_TP, _OTHER = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


def _judged(offset, *, status=LagStatus.OK, expires_soon=False):
    lag = LagVerdict(status, 5, 1.0, 0, None, 1.0, expires_soon=expires_soon)
    return {_TP: PartitionHistory(9, lag, () if offset is None else (Commit(5, offset, 20),))}


def _stored(offset, partition=_TP):
    return DatabasePositions({"g": {partition: offset}})


class TestWhichCounts(base.BaseTestCase):
    def test_differences_are_reported_for_a_bad_verdict_or_a_copy_that_is_ahead(self):
        """Kafka's copy is at 10."""
        cases = {
            "the status is OK and the database is slightly ahead": (_judged(10), _stored(12), False),
            "the status is OK and the copy is ahead": (_judged(10), _stored(8), True),
            "the group has stopped and the database is ahead": (_judged(10, status=LagStatus.STOP), _stored(12), True),
            "the group is slow and the database is ahead": (_judged(10, status=LagStatus.WARNING), _stored(12), True),
            "messages expire soon and the database is ahead": (_judged(10, expires_soon=True), _stored(12), True),
            "the group has stopped and both positions are equal": (
                _judged(10, status=LagStatus.STOP),
                _stored(10),
                False,
            ),
            "the group has stopped and Kafka has no position yet": (
                _judged(None, status=LagStatus.STOP),
                _stored(3),
                True,
            ),
            "the group has stopped and no database has its position": (
                _judged(10, status=LagStatus.STOP),
                no_database(),
                False,
            ),
            "the database has a position of another topic": (
                _judged(10, status=LagStatus.STOP),
                _stored(12, TopicPartition("logs", 0)),
                False,
            ),
        }
        for name, (judged, stored, expected) in cases.items():
            with self.subTest(name):
                self.assertEqual(expected, bool(position_remarks({"g": judged}, stored)))

    def test_a_remark_has_both_positions_and_the_reason(self):
        why, where = position_remarks({"g": _judged(10, status=LagStatus.STOP)}, _stored(12))
        self.assertIn(
            "the verdict on g uses Kafka's copy of its offsets. The service resumes from the database, which", why
        )
        self.assertEqual("  metrics/0: 12 in the database, 10 in Kafka", where)

    def test_the_place_of_the_position_and_its_difference_are_facts(self):
        cases = (
            (no_database(), ("kafka", False)),
            (_stored(10), ("database", False)),
            (_stored(12), ("database", True)),
            (_stored(12, _OTHER), ("database", True)),
            (_stored(12, TopicPartition("logs", 0)), ("database", False)),
            (DatabasePositions(error="no response"), ("unknown", None)),
        )
        for stored, expected in cases:
            self.assertEqual(expected, (stored.place("g"), stored.differ("g", _judged(10))))

    def test_a_partition_differs_by_its_own_position_and_a_group_by_any(self):
        nothing_copied = _judged(None, status=LagStatus.STOP)
        self.assertTrue(_stored(3).differ("g", nothing_copied))
        self.assertTrue(_stored(3).differ("g", nothing_copied, _TP))
        self.assertFalse(_stored(3, _OTHER).differ("g", _judged(10), _TP))

    def test_a_difference_is_reported_once(self):
        for judged in (_judged(10, status=LagStatus.STOP), _judged(None, status=LagStatus.STOP)):
            for stored in (no_database(), _stored(10), _stored(12), _stored(12, _OTHER)):
                text = position_remarks({"g": judged}, stored)
                self.assertEqual(stored.differ("g", judged), bool(text), text)

    def test_an_unknown_database_is_reported_once_for_all_groups(self):
        groups = {"g": _judged(10), "h": _judged(10, status=LagStatus.STOP)}
        (line,) = position_remarks(groups, DatabasePositions(error="no response"))
        self.assertEqual(
            "verdicts use Kafka's offsets; it is unknown if services resume from other offsets in a database: "
            "no response",
            line,
        )
