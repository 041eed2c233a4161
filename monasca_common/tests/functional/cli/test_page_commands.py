# SPDX-License-Identifier: Apache-2.0
"""The commands of pages for operators run as the pages show them."""

import re
from pathlib import Path

import fixtures

from monasca_common.kafka import dead_letters
from monasca_common.kafka.message import TopicPartition
from monasca_common.tests.functional.cli.cluster_case import ClusterCommandCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.test_command_pages import calls

PAGES = Path(__file__).parents[4] / "doc" / "source"
_ENVELOPE = (
    b'{"metric": {"name": "cpu.idle", "dimensions": {}, "timestamp": 1769839200000, "value": 1},'
    b' "meta": {"tenantId": "t", "region": "r"}, "creation_time": 1769839200}'
)
# The exit status of each command of a page, in order; None: the command needs another service, or runs until Ctrl-C.
STATUSES = {
    "cli/init": (0, 0, 0, 0),
    "cli/db": (0, 0, 0),
    "cli/topic": (0, 0, 1, None, 0),  # the topic to create exists
    "cli/durability": (1,),  # the topic has one replica
    "cli/offsets": (0, 0),
    "admin/operations": (0,),
    # The page before has moved the group back, so its lag status is REWIND.
    "admin/symptoms": (1, 1, 0, 0, 0, 0, 0, None, None, None, None),
    "cli/dlq": (0, 0, 0, 3, 0),  # no dead letter is left to select by its reason
}


@periodic("28 processes; the normal run parses each command")
class TestPageCommands(ClusterCommandCase):
    TIMEOUT_SCALING_FACTOR = 3

    def setUp(self):
        super().setUp()
        servers = self.cluster.direct_options()["bootstrap.servers"]
        path = self.useFixture(fixtures.TempDir()).join("rows.sqlite")
        text = (
            f"[kafka]\nbootstrap_servers = {servers}\n[api]\nauth_strategy = noauth\n"
            f"[storage]\ndriver = sqlite\n[database]\nconnection = sqlite:///{path}\n"
        )
        self.configuration = text
        self.before = self.topics()
        self.addCleanup(self.delete_new_topics)

    def topics(self):
        return {name for name in self.admin.partition_counts() if not name.startswith("__")}

    def delete_new_topics(self):
        for name in self.topics() - self.before:
            self.admin.delete_topic(name)

    def test_each_command_has_the_documented_exit_status(self):
        expected, found, errors = [], [], []
        for page, statuses in STATUSES.items():
            if page == "cli/topic":
                self.publish()
            commands = calls((PAGES / f"{page}.rst").read_text())
            for words, status in zip(commands, statuses, strict=True):
                if status is not None:
                    expected.append((page, words, status))
                    ended, out, err = self.run_command(*re.sub(r"--config-file \S+", "", words).split())
                    found.append((page, words, ended))
                    errors += [out, err] if ended != status else []
        self.assertEqual(expected, found, "\n".join(errors))

    def publish(self):
        """Publish metrics and a dead letter, and commit offsets of the persister's group."""
        self.put("metrics", *[(None, _ENVELOPE, [])] * 3)
        origin = [
            (dead_letters.ORIGIN_TOPIC, b"metrics"),
            (dead_letters.ORIGIN_PARTITION, b"0"),
            (dead_letters.ORIGIN_OFFSET, b"0"),
            (dead_letters.ORIGIN_MESSAGE_ID, b"id"),
            (dead_letters.ERROR_CLASS, b"monasca_common.models.errors.InvalidEnvelope"),
            (dead_letters.ERROR_TEXT, b"no value"),
        ]
        self.put("metrics.dlq", *[(None, b"{}", origin)] * 2)
        self.admin.alter_group_offsets("1_metrics", {TopicPartition("metrics", 0): 1})
