# SPDX-License-Identifier: Apache-2.0
"""``monasca-common balance`` on three brokers, of which one was away."""

import json

from monasca_common.tests.functional.cli.cluster_case import ClusterCommandCase


class TestBalance(ClusterCommandCase):
    command = ("balance",)
    nodes = 3

    def test_what_a_broker_that_came_back_should_lead_it_leads_after_an_election(self):
        topic = self.fixture.topic(6)
        status, _ = self.balance(topic)
        self.assertEqual(0, status)
        node = self.cluster.nodes[0]
        node.kill()
        self.wait_until(lambda: 1 not in self.admin.describe_topic(topic).leaders, "other leaders")
        node.restart()
        self.wait_until(
            lambda: all(len(in_sync) == 3 for in_sync in self.admin.describe_topic(topic).in_sync), "complete copies"
        )
        status, rows = self.balance(topic)
        self.assertEqual((1, 2, 100, 6), (status, rows[1]["should_lead"], rows[1]["percent_away"], rows[1]["copies"]))
        status, rows = self.balance(topic, "--elect")
        self.assertEqual((0, {2}), (status, {row["leads"] for row in rows.values()}))
        self.assertEqual({0}, {row["percent_away"] for row in rows.values()})

    def balance(self, topic, *arguments):
        """The exit status, and the rows by broker."""
        status, out, err = self.run_command("--topic", topic, *arguments, "-f", "json")
        self.assertIn(status, (0, 1), err)
        return status, {row["broker"]: row for row in json.loads(out)}

    def test_a_topic_that_is_not_there_is_status_3(self):
        self.assertEqual(3, self.run_command("--topic", "nothing")[0])
