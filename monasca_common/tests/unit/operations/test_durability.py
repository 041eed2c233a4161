# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from oslotest import base

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.durability import (
    Severity,
    TopicDurability,
    durability_findings,
    group_retention_findings,
    retention_findings,
)
from monasca_common.operations.lag.verdict import LagStatus, LagVerdict

_ALL = (1, 2, 3)
_SOUND = TopicDurability("metrics", (1, 2), (_ALL, _ALL), (_ALL, _ALL), min_in_sync=2, unclean_election=False)
_PAIR = replace(_SOUND, replicas=((1, 2), (2, 1)), in_sync=((1, 2), (2, 1)))

# Topics, and the violated rules with the affected partitions.
_CASES = {
    "each of three replicas is in sync, and two must acknowledge": (_SOUND, []),
    "one replica": (replace(_SOUND, replicas=((1,), (2,)), in_sync=((1,), (2,)), min_in_sync=1), [("one_copy", ())]),
    "a leader may acknowledge without followers": (replace(_SOUND, min_in_sync=1), [("leader_alone", ())]),
    "an out-of-sync replica may become leader": (replace(_SOUND, unclean_election=True), [("unclean_election", ())]),
    "both of two replicas must acknowledge": (_PAIR, [("no_spare_copy", ())]),
    "one acknowledging replica and unclean elections": (
        replace(_PAIR, min_in_sync=1, unclean_election=True),
        [("leader_alone", ()), ("unclean_election", ())],
    ),
    "more replicas must acknowledge than exist": (
        replace(_PAIR, min_in_sync=3),
        [("never_writable", ())],
    ),
    "a replica is behind": (replace(_SOUND, in_sync=(_ALL, (2, 3))), [("under_replicated", (1,))]),
    "fewer replicas are in sync than must acknowledge": (
        replace(_SOUND, in_sync=((1,), _ALL)),
        [("writes_refused", (0,))],
    ),
    "a partition has no leader": (replace(_SOUND, leaders=(1, None), in_sync=(_ALL, (2,))), [("offline", (1,))]),
}


class TestDurabilityFindings(base.BaseTestCase):
    def test_each_fault_has_its_own_rule(self):
        for name, (topic, expected) in _CASES.items():
            with self.subTest(name):
                found = [(each.rule, each.partitions) for each in durability_findings(topic)]
                self.assertEqual(expected, found)

    def test_findings_list_errors_before_warnings(self):
        found = durability_findings(replace(_PAIR, leaders=(1, None), in_sync=((1, 2), (2,))))
        self.assertEqual(["offline", "no_spare_copy"], [each.rule for each in found])
        self.assertEqual([Severity.ERROR, Severity.WARNING], [each.severity for each in found])

    def test_a_finding_names_the_remedy(self):
        texts = [each.text for topic, _ in _CASES.values() for each in durability_findings(topic)]
        for text in texts:
            self.assertTrue(any(word in text for word in ("raise", "lower", "add a replica", "set it", "start")))


class TestRetentionFindings(base.BaseTestCase):
    def found(self, *, deleted=0, headroom_seconds=None, truncated=0, expires_soon=False):
        lag = LagVerdict(LagStatus.OK, 5, 10.0, deleted, headroom_seconds, 1.0, truncated, 2000.0, expires_soon)
        return list(retention_findings(_SOUND.name, "slow", lag))

    def rules(self, **facts):
        return [each.rule for each in self.found(**facts)]

    def test_messages_that_were_removed_unread_are_an_error(self):
        self.assertEqual(["deleted_unread"], self.rules(deleted=3, headroom_seconds=0.0, expires_soon=True))

    def test_messages_that_expire_soon_at_the_speed_of_their_reader_are_an_error(self):
        self.assertEqual([], self.rules(headroom_seconds=1.0))
        (finding,) = self.found(headroom_seconds=1000.0, expires_soon=True)
        self.assertEqual(("retention_near", Severity.ERROR), (finding.rule, finding.severity))
        self.assertIn("in 2,000 s", finding.text)

    def test_a_group_without_unread_messages_or_a_topic_without_retention_has_no_finding(self):
        self.assertEqual([], self.rules())
        self.assertEqual([], self.rules(headroom_seconds=1000.0))

    def test_offsets_that_were_deleted_from_the_log_are_an_error(self):
        self.assertEqual(["truncated"], self.rules(truncated=4))

    def test_a_retention_finding_means_a_lag_error_and_vice_versa(self):
        for facts in ({}, {"headroom_seconds": 1.0}, {"deleted": 1}, {"truncated": 1}, {"expires_soon": True}):
            lag = LagVerdict(
                LagStatus.OK, 5, 10.0, **{"deleted": 0, "headroom_seconds": None, "completeness": 1.0, **facts}
            )
            found = retention_findings(_SOUND.name, "slow", lag)
            self.assertEqual(lag.is_error, any(each.severity is Severity.ERROR for each in found), facts)

    def test_a_group_has_a_finding_for_each_topic_in_which_it_is_late(self):
        well = LagVerdict(LagStatus.OK, 5, 10.0, 0, None, 1.0)
        partitions = {
            TopicPartition("metrics", 0): replace(well, deleted=1),
            TopicPartition("metrics", 1): replace(well, deleted=2),
            TopicPartition("log", 0): replace(well, truncated=4),
            TopicPartition("events", 0): well,
        }
        found = list(group_retention_findings("slow", partitions))
        self.assertEqual(
            [("log", "truncated"), ("metrics", "deleted_unread")], [(each.topic, each.rule) for each in found]
        )
        self.assertIn("3 messages were deleted", found[1].text)
