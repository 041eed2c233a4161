# SPDX-License-Identifier: Apache-2.0
"""``monasca-common offsets`` for a group with offsets in Kafka, moved to a time by a duration."""

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
        (move,) = self.rows(*words)
        self.assertEqual({self.partition: move["stored"]}, self.admin.group_offsets(self.group))
        self.assertEqual([move], self.rows(*words, "--execute"))
        return self.admin.group_offsets(self.group)[self.partition]

    def test_a_duration_is_counted_back_from_now(self):
        self.assertEqual(7, self.reset("--by-duration", "190m"))
        self.assertEqual(10, self.reset("--by-duration", "1s"))
        self.assertEqual(0, self.reset("--by-duration", "7d"))
