# SPDX-License-Identifier: Apache-2.0
"""``monasca-common lag`` on a cluster of which only what a survey finds is there."""

import json
from unittest import mock

from monasca_common.cli import lag
from monasca_common.kafka import TopicPartition, plugins
from monasca_common.operations.lag.history import LagHistory
from monasca_common.operations.lag.verdict import Commit, PartitionState
from monasca_common.tests.unit.cli.command_case import CommandCase

_PARTITION = TopicPartition("metrics", 0)


class LagCommandCase(CommandCase):
    """``ends``: where the log of the only partition ends, at each look; the group ``g`` has committed offset 5."""

    configuration = "[kafka]\nbootstrap_servers = kafka:9092\n"

    def setUp(self):
        super().setUp()
        self.ends = [9]
        self.groups = ["g"]
        self.looks = 0
        self.asked = []
        self.patch(plugins, "load_admin", lambda *_: None)
        self.patch(lag, "LagSurvey", lambda *arguments, **_: self.made(*arguments))
        self.patch(lag, "read_history", self.read_history)
        self.patch(lag.time, "sleep", lambda _: None)

    def made(self, _admin, _connection, window):
        self.window = window
        return mock.Mock(groups=lambda: list(self.groups), scan=self.scan)

    def read_history(self, _admin, _connection, topic, **_):
        self.asked.append(topic)
        return LagHistory(1)

    def scan(self, groups, now_ms, history):
        end = self.ends[min(self.looks, len(self.ends) - 1)]
        self.looks += 1
        state = PartitionState(0, end, (Commit(now_ms - 1000, 5, end),), now_ms - 1000 if end > 5 else None)
        return {group: {_PARTITION: state} for group in groups}


class LagVerdictsTest(LagCommandCase):
    command = ("lag",)

    def test_offsets_that_the_log_no_longer_has_are_an_error_as_of_durability_check(self):
        for command in (("list",), ("show", "--group", "g")):
            self.ends = [9]
            self.assertEqual(0, self.run_command(*command)[0])
            self.ends = [3]
            status, out, _ = self.run_command(*command, "-f", "json")
            self.assertEqual((1, 2), (status, json.loads(out)[0]["truncated"]))

    def test_a_name_or_a_pattern_that_no_group_has_is_status_3_as_of_every_command(self):
        for name in ("gg", "x*", "?x"):
            for command in (("list",), ("watch", "--looks", "2")):
                status, _, err = self.run_command(*command, "--group", name)
                self.assertEqual((3, 1), (status, err.count(f"--group {name}: the cluster has no such group")), err)
        for name in ("g", "?", "*"):
            self.assertEqual((0, ""), self.run_command("list", "--group", name)[::2])

    def test_a_cluster_without_groups_is_well(self):
        self.groups = []
        self.assertEqual(0, self.run_command("list")[0])

    def test_a_watch_that_finds_its_group_at_last_ends_as_well_as_that(self):
        self.patch(lag.time, "sleep", lambda _: self.groups.append("late"))
        self.assertEqual(0, self.run_command("watch", "--looks", "2", "--group", "late")[0])

    def test_the_group_of_dead_letters_is_judged_by_no_command(self):
        self.groups = ["monasca-dlq-replay"]
        for command in (("list",), ("show",), ("watch", "--looks", "1")):
            status, _, err = self.run_command(*command, "--group", "monasca-dlq-replay")
            self.assertEqual((2, 0), (status, self.looks))
            self.assertIn("`monasca-common dlq list` shows what waits", err)

    def test_watch_tells_that_the_log_ends_before_the_offsets_and_when_it_no_longer_does(self):
        self.ends = [9, 3, 3, 9]
        status, out, _ = self.run_command("watch", "--looks", "4", "-f", "json")
        self.assertEqual((0, [0, 2, 0]), (status, [json.loads(line)["truncated"] for line in out.splitlines()]))
        self.ends, self.looks = [3], 0
        status, out, _ = self.run_command("watch", "--looks", "1")
        self.assertEqual(1, status)
        self.assertIn("its offsets are 2 beyond the end of the log", out)


class LagOptionsTest(LagCommandCase):
    command = ("lag",)
    configuration = LagCommandCase.configuration + "[lag]\nwindow_seconds = 7.5\ntopic = kept-elsewhere\n"
    commands = (("list",), ("show", "--group", "g"), ("watch", "--looks", "1"))

    def test_window_and_history_are_those_of_lag_serve(self):
        for command in self.commands:
            self.asked.clear()
            self.run_command(*command)
            self.assertEqual((7.5, ["kept-elsewhere"]), (self.window.seconds, self.asked))

    def test_an_argument_replaces_the_option(self):
        for command in self.commands:
            self.asked.clear()
            self.run_command(*command, "--window-seconds", "9", "--history-topic", "another")
            self.assertEqual((9, ["another"]), (self.window.seconds, self.asked))
