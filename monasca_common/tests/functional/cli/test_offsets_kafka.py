# SPDX-License-Identifier: Apache-2.0
"""``monasca-common offsets`` for a group with offsets in Kafka: shifted, and moved to a time and by a duration."""

import time

from monasca_common.kafka.message import TopicPartition
from monasca_common.tests.functional.cli.cluster_case import ClusterCommandCase

_HOUR_MS = 3_600_000


class TestReset(ClusterCommandCase):
    command = ("offsets",)

    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic()
        self.partition = TopicPartition(self.topic, 0)
        now_ms = round(time.time() * 1000)
        for number in range(10):  # an hour between two messages
            self.put(self.topic, (None, b"x", []), timestamp_ms=now_ms - (10 - number) * _HOUR_MS)
        self.group = f"group-{self.own}"
        self.admin.alter_group_offsets(self.group, {self.partition: 5})

    def reset(self, *arguments):
        words = ("reset", "--group", self.group, "--topic", self.topic, *arguments)
        (move,) = self.run_json(*words)
        self.assertEqual({self.partition: move["stored"]}, self.admin.group_offsets(self.group))
        self.assertEqual([move], self.run_json(*words, "--execute"))
        return self.admin.group_offsets(self.group)[self.partition]

    def test_a_shift_is_limited_to_the_log(self):
        self.assertEqual(8, self.reset("--shift-by", "3"))
        self.assertEqual(10, self.reset("--shift-by", "3"))
        self.admin.delete_records({self.partition: 2})
        self.assertEqual(2, self.reset("--shift-by=-100"))

    def test_a_duration_is_counted_back_from_now(self):
        self.assertEqual(7, self.reset("--by-duration", "190m"))
        self.assertEqual(10, self.reset("--by-duration", "1s"))
        self.assertEqual(0, self.reset("--by-duration", "7d"))

    def test_a_group_without_an_offset_cannot_be_shifted(self):
        words = ("reset", "--group", f"new-{self.own}", "--topic", self.topic, "--shift-by", "1", "--execute")
        status, _, err = self.run_command(*words)
        self.assertEqual((1, True), (status, "has no offset of this topic to shift" in err))
