# SPDX-License-Identifier: Apache-2.0
"""``monasca-common lag`` with the results of a survey."""

import json
from unittest import mock

from monasca_common.cli import lag
from monasca_common.kafka import TopicPartition, plugins
from monasca_common.operations.lag.history import LagHistory
from monasca_common.operations.lag.verdict import Commit, PartitionState
from monasca_common.tests.unit.cli.command_case import CommandCase

_PARTITION = TopicPartition("metrics", 0)


class LagCommandCase(CommandCase):
    """``end``: the end of the only partition's log; the group ``g`` has committed offset 5."""

    configuration = "[kafka]\nbootstrap_servers = kafka:9092\n"

    def setUp(self):
        super().setUp()
        self.end = 9
        self.groups = ["g"]
        self.surveys = 0
        self.asked = []
        self.patch(plugins, "load_admin", lambda *_: None)
        self.patch(lag, "LagSurvey", lambda *arguments, **_: self.made(*arguments))
        self.patch(lag, "read_history", self.read_history)

    def made(self, _admin, _connection, window):
        self.window = window
        return mock.Mock(groups=lambda: list(self.groups), scan=self.scan)

    def read_history(self, _admin, _connection, topic, **_):
        self.asked.append(topic)
        return LagHistory(1)

    def scan(self, groups, now_ms, history):
        self.surveys += 1
        state = PartitionState(
            0, self.end, (Commit(now_ms - 1000, 5, self.end),), now_ms - 1000 if self.end > 5 else None
        )
        return {group: {_PARTITION: state} for group in groups}


class LagVerdictsTest(LagCommandCase):
    command = ("lag",)

    def test_deleted_offsets_are_an_error_as_in_durability_check(self):
        for command in (("list",), ("show", "--group", "g")):
            self.end = 9
            self.assertEqual(0, self.run_command(*command)[0])
            self.end = 3
            status, out, _ = self.run_command(*command, "-f", "json")
            self.assertEqual((1, 2), (status, json.loads(out)[0]["truncated"]))

    def test_a_name_that_matches_no_group_ends_with_status_3(self):
        for name in ("gg", "x*", "?x"):
            status, _, err = self.run_command("list", "--group", name)
            self.assertEqual((3, 1), (status, err.count(f"--group {name}: this group does not exist")), err)
        for name in ("g", "?", "*"):
            self.assertEqual((0, ""), self.run_command("list", "--group", name)[::2])

    def test_a_cluster_without_groups_ends_with_status_0(self):
        self.groups = []
        self.assertEqual(0, self.run_command("list")[0])

    def test_the_dead_letter_group_has_no_lag_status(self):
        self.groups = ["monasca-dlq-replay"]
        for command in (("list",), ("show",)):
            status, _, err = self.run_command(*command, "--group", "monasca-dlq-replay")
            self.assertEqual((2, 0), (status, self.surveys))
            self.assertIn("`monasca-common dlq list` shows pending dead letters", err)


class LagOptionsTest(LagCommandCase):
    command = ("lag",)
    configuration = LagCommandCase.configuration + "[lag]\nwindow_seconds = 7.5\ntopic = kept-elsewhere\n"
    commands = (("list",), ("show", "--group", "g"))

    def test_window_and_history_are_those_of_lag_serve(self):
        for command in self.commands:
            self.asked.clear()
            self.run_command(*command)
            self.assertEqual((7.5, ["kept-elsewhere"]), (self.window.seconds, self.asked))
