# SPDX-License-Identifier: Apache-2.0
"""``monasca-common mirror verify``: its rows. The comparison is tested with the mirror."""

import fixtures

from monasca_common.cli import mirror
from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.mirror.comparison import PartitionComparison
from monasca_common.operations.mirror.positions import MirrorPosition
from monasca_common.tests.unit.cli.command_case import CommandCase

_PARTITIONS = TopicPartition("metrics", 0), TopicPartition("metrics", 1)


class TwoPartitions:
    """Copies that all equal their source."""

    def __init__(self, settings, source, target):
        pass

    def positions(self, topics):
        return [MirrorPosition("mirror", each, 0, 5, "s", "t") for each in _PARTITIONS]

    def compacted(self, topics):
        return set()

    def compare(self, position, since_ms, *, is_compacted):
        return PartitionComparison(position.partition)


class VerifyTest(CommandCase):
    command = ("mirror",)
    configuration = """\
[kafka]
bootstrap_servers = kafka:9092
[mirror]
topics = metrics
[mirror_target]
bootstrap_servers = other:9092
"""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(f"{mirror.__name__}.MirrorVerification", TwoPartitions))
        self.useFixture(fixtures.MonkeyPatch(f"{mirror.__name__}.open_admin", lambda _: None))

    def test_each_partition_has_a_row(self):
        status, out, err = self.run_command("verify", "-f", "value", "-c", "status")
        self.assertEqual((0, ["SAME", "SAME"], ""), (status, out.split(), err))

    def test_a_partition_that_cannot_be_read_does_not_hide_the_others(self):
        def compare(_verification, position, _since_ms, *, is_compacted):
            if position.partition == _PARTITIONS[0]:
                raise RetriableError("no message for 60 s")
            return PartitionComparison(position.partition)

        self.useFixture(fixtures.MonkeyPatch(f"{__name__}.TwoPartitions.compare", compare))
        status, out, err = self.run_command("verify", "-f", "value", "-c", "partition", "-c", "status")
        self.assertEqual((2, ["0 NOT COMPARED", "1 SAME"]), (status, out.splitlines()))
        self.assertIn("metrics/0 was not compared: no message for 60 s", err)
