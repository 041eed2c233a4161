# SPDX-License-Identifier: Apache-2.0
"""``monasca-common balance`` on three brokers, of which one was away."""

import json

from monasca_common.kafka import RetriableError
from monasca_common.tests.functional.cli.cluster_case import ClusterCommandCase
from monasca_common.tests.periodic import periodic


@periodic("three nodes start for one command")
class TestBalance(ClusterCommandCase):
    command = ("balance",)
    nodes = 3

    def test_what_a_broker_that_came_back_should_lead_it_leads_after_an_election(self):
        topic = self.fixture.topic(6)
        status, _ = self.balance(topic)
        self.assertEqual(0, status)
        node = self.cluster.nodes[0]
        node.kill()
        self.wait_until_it_is(topic, lambda found: 1 not in found.leaders, "other leaders")
        node.restart()
        self.wait_until_it_is(topic, lambda found: all(len(each) == 3 for each in found.in_sync), "complete copies")
        status, rows = self.balance(topic)
        self.assertEqual((1, 2, 100, 6), (status, rows[1]["should_lead"], rows[1]["percent_away"], rows[1]["copies"]))
        status, rows = self.balance(topic, "--execute")
        self.assertEqual((0, {2}), (status, {row["leads"] for row in rows.values()}))
        self.assertEqual({0}, {row["percent_away"] for row in rows.values()})

    def wait_until_it_is(self, topic, condition, what):
        def is_so():
            try:
                return condition(self.admin.describe_topic(topic))
            except RetriableError:  # the node that died was the one that was asked
                return False

        self.wait_until(is_so, what)

    def balance(self, topic, *arguments):
        """The exit status, and the rows by broker."""
        status, out, err = self.run_command("--topic", topic, *arguments, "-f", "json")
        self.assertIn(status, (0, 1), err)
        return status, {row["broker"]: row for row in json.loads(out)}

    def test_a_topic_that_is_not_there_is_status_3(self):
        self.assertEqual(3, self.run_command("--topic", "nothing")[0])
